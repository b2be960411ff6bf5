"""Where a worker finds a task's function: by module and name, never by its code.

A child imports the module and takes the function from it, so a function must have a name that leads
to it. A module that is not installed is found by the folder that it was imported from, which goes
with the definition; so does the folder of a script, whose functions a child imports under the name
of its file.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore.errors import UsageError

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class ImportPath:
    """``module`` and ``name`` lead to the function; ``folder``: where the module is, if needed."""

    module: str
    name: str
    source_dir: str | None = None

    @property
    def path(self) -> str:
        """As a definition has it."""
        return f"{self.module}:{self.name}"


def import_path_of(task: Any, module: str, name: str) -> ImportPath:
    """Where a child finds the task that was made of the function ``name`` of ``module``.

    Raises:
        UsageError: it could not find it; the message says what to do.
    """
    shown = f"{module}:{name}"
    if "<lambda>" in name:
        message = "a lambda cannot be a task: a worker finds a function by its name; use `def`"
        raise UsageError(message)
    if "<locals>" in name:
        message = (
            f"{shown} cannot be a task: it is made inside another function, where no worker can"
            " find it; move it to the top of its module"
        )
        raise UsageError(message)
    found = sys.modules.get(module)
    if getattr(getattr(found, "__spec__", None), "_initializing", False):
        # A child that imports a script would submit its job again, and so would that one's child.
        message = (
            f"{shown} cannot be submitted while {module} is being imported: put what is to happen"
            " when the program is run under `if __name__ == '__main__':`"
        )
        raise UsageError(message)
    if found is None or _lookup(found, name) is not task:
        message = (
            f"{shown} cannot be a task: that name does not lead to it; decorate the function"
            " where it is defined, and keep its name"
        )
        raise UsageError(message)
    if module == _MAIN:
        return _script_import_path(found, name)
    return ImportPath(module, name, _source_dir_of(module, getattr(found, "__file__", None)))


def _lookup(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _script_import_path(main: Any, name: str) -> ImportPath:
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name.rpartition(".")[2] != _MAIN:
        # Run by ``python -m``, and importable by the same name.
        return ImportPath(spec.name, name, _source_dir_of(spec.name, file))
    path = Path(file).resolve() if file else None
    if path is None or not _is_importable(path):
        where = f"{path.name} cannot be imported by its name" if path else "there is no file of it"
        message = (
            f"{name!r} cannot be submitted from the main program, because {where}, and a worker"
            " has to import it: put the function into a module and import it from there"
        )
        raise UsageError(message)
    return ImportPath(path.stem, name, str(path.parent))


def _is_importable(path: Path) -> bool:
    """Whether ``import stem`` with its folder first on the path can only mean this file."""
    stem = path.stem
    other = sys.modules.get(stem)
    return (
        path.suffix == ".py"
        and stem.isidentifier()
        and stem != _MAIN
        and stem not in sys.stdlib_module_names
        and (other is None or getattr(other, "__file__", None) == str(path))
    )


def _source_dir_of(module: str, file: str | None) -> str | None:
    """The folder to import a module from; None if everybody has it on their path."""
    if file is None:
        return None
    path = Path(file).resolve()
    parts = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[parts]
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return None if folder in installed else str(folder)
