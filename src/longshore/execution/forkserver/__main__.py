"""Starts the fork server: ``python -m longshore.execution.forkserver SOCKET FILES MODULE… -- FD…``.

``FILES`` is how many files a task may open, if its definition does not limit them further.

Each ``FD`` is a file descriptor that stays open while any process of an attempt is alive.
"""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import traceback
from types import ModuleType

from longshore.execution.forkserver.server import ForkServer
from longshore.execution.linux import hide_memory
from longshore.execution.protocol import EXIT_CANNOT_LOAD


def prebuild_functions(module: ModuleType) -> None:
    """Build once, before any fork, what each child would otherwise build for itself."""
    for value in list(vars(module).values()):
        # By name: importing the class would load what a fork server for commands does not need.
        prebuild = getattr(value, "prebuild", None)
        if hasattr(value, "run_with") and callable(prebuild):
            prebuild()


def main(arguments: list[str]) -> int:
    """Load the modules that children need, then serve the worker. Returns the exit code."""
    hide_memory()  # also of all that it forks: reapers and Python children
    socket_fd, open_files, *rest = arguments
    separator = rest.index("--")
    modules, inherited_fds = rest[:separator], rest[separator + 1 :]
    sys.path.insert(0, "")
    try:
        for module in modules:
            prebuild_functions(importlib.import_module(module))
    except Exception:  # noqa: BLE001 - a user's module may raise anything; its traceback explains it
        traceback.print_exc()
        return EXIT_CANNOT_LOAD
    if threading.active_count() > 1:
        # A fork copies locks that other threads hold, and nothing in the copy would release them.
        main_thread = threading.main_thread()
        others = [thread.name for thread in threading.enumerate() if thread is not main_thread]
        sys.stderr.write(
            f"longshore: loading {', '.join(modules)} started threads ({', '.join(others)});"
            " start them inside tasks instead, or use 'isolation: spawn'\n"
        )
        return EXIT_CANNOT_LOAD
    with socket.socket(fileno=int(socket_fd)) as worker:
        ForkServer(worker, tuple(int(fd) for fd in inherited_fds), int(open_files)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
