"""Whether the modules of an app are there, looked up before any work is taken.

A worker that took tasks and could import none of their functions would use up their attempts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from longshore.errors import ConfigurationError


def check_app_modules(modules: Sequence[str], folder: Path) -> None:
    """See that each module can be found, in ``folder`` too. Packages around it are imported.

    Raises:
        ConfigurationError: with a sentence for each that cannot.
    """
    with _first_on_sys_path(str(folder)):
        problems = [problem for module in modules if (problem := _import_problem(module))]
    if problems:
        raise ConfigurationError([f"worker.app: {problem}" for problem in problems])


def _import_problem(module: str) -> str | None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    except Exception as error:  # noqa: BLE001 - a package may raise anything when it is imported
        return f"the package of {module!r} cannot be imported: {error!r}"
    if found is not None:
        return None
    hint = "; leave out the .py" if module.endswith(".py") else ""
    return f"there is no module {module!r} in the current folder or among what is installed{hint}"


@contextlib.contextmanager
def _first_on_sys_path(folder: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before
