"""Start of the keeper: ``python -m longshore.runners.keeper SOCKET PIPE MODULE… -- HELD…``."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import traceback
from types import ModuleType

from longshore.core.keeper_words import CANNOT_LOAD
from longshore.runners.keeper.keeper import Keeper


def _prepare(module: ModuleType) -> None:
    """What each child would have to build for itself is built once, before any fork."""
    for found in list(vars(module).values()):
        prepare = getattr(found, "prepare", None)
        if hasattr(found, "run_with") and callable(prepare):
            prepare()


def main(arguments: list[str]) -> int:
    """Load what children will need, then serve the worker at the other end of the socket."""
    number, to_worker, *rest = arguments
    divide = rest.index("--")
    modules, held = rest[:divide], rest[divide + 1 :]
    sys.path.insert(0, "")
    try:
        for module in modules:
            _prepare(importlib.import_module(module))
    except Exception:  # noqa: BLE001 - whatever it is, the user's own trace says it best
        traceback.print_exc()
        return CANNOT_LOAD
    if threading.active_count() > 1:
        # A copy of a process with threads may hold a lock for ever that one of them had.
        others = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
        sys.stderr.write(
            f"longshore: loading {', '.join(modules)} started threads ({', '.join(others)});"
            " start them inside tasks instead, or use 'isolation: spawn'\n"
        )
        return CANNOT_LOAD
    with socket.socket(fileno=int(number)) as worker:
        Keeper(worker, int(to_worker), tuple(int(one) for one in held)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
