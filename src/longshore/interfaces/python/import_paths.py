"""How a worker finds a task's function: by module and name, never by its code.

A child imports the module and looks the function up by its name. For a module that is not
installed, the definition also has the directory to import it from. The functions of a script are
imported under the name of its file.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from longshore.errors import UsageError

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class ImportPath:
    """The path of a function; ``source_dir``: where to import the module from, if not installed."""

    module: str
    name: str
    source_dir: str | None = None

    @property
    def path(self) -> str:
        """The path in a definition, like ``shop.tasks:fetch``."""
        return f"{self.module}:{self.name}"


def import_path_of(task: Any, module: str, name: str) -> ImportPath:
    """The path by which a child imports a task.

    Raises:
        UsageError: a child could not import it; the message says what to do.
    """
    shown = f"{module}:{name}"
    if "<lambda>" in name:
        message = "a lambda cannot be a task: a worker finds a function by its name; use `def`"
        raise UsageError(message)
    if "<locals>" in name:
        raise UsageError(
            f"{shown} cannot be a task: it is defined inside another function, where no worker can"
            " find it; move it to the top level of its module"
        )
    loaded = sys.modules.get(module)
    if getattr(getattr(loaded, "__spec__", None), "_initializing", False):
        # A child that imports the script would submit the job again, and so would its child.
        raise UsageError(
            f"{shown} cannot be submitted while {module} is being imported: put the code that"
            " runs the program under `if __name__ == '__main__':`"
        )
    if reduce(lambda value, part: getattr(value, part, None), name.split("."), loaded) is not task:
        raise UsageError(
            f"{shown} cannot be a task: that name is not the decorated function; decorate it"
            " where it is defined, and keep its name"
        )
    if module == _MAIN:
        return _script_import_path(loaded, name)
    return ImportPath(module, name, _source_dir_of(module, getattr(loaded, "__file__", None)))


def _script_import_path(main: Any, name: str) -> ImportPath:
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name.rpartition(".")[2] != _MAIN:
        # The program was started by ``python -m``: it can be imported by the same name.
        return ImportPath(spec.name, name, _source_dir_of(spec.name, file))
    path = Path(file).resolve() if file else None
    if path is None or not _is_importable(path):
        reason = f"{path.name} cannot be imported by its name" if path else "it has no file"
        raise UsageError(
            f"{name!r} cannot be submitted from the main program, because {reason}, and a worker"
            " has to import it: put the function into a module and import it from there"
        )
    return ImportPath(path.stem, name, str(path.parent))


def _is_importable(path: Path) -> bool:
    """Whether ``import stem`` with its directory first on the path can only find this file."""
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
    """The directory to import a module from; None if it is installed."""
    if file is None:
        return None
    path = Path(file).resolve()
    parts = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[parts]
    installed = {Path(directory).resolve() for directory in sysconfig.get_paths().values()}
    return None if folder in installed else str(folder)
