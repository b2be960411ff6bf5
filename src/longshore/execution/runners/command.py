"""The command runner: becomes the command.

The child replaces itself with the command, so there is no process between the worker and the work:
its exit code, its signals and its streams are the command's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn


def run(spec: Mapping[str, Any]) -> NoReturn:
    """Replace this process; returns only by an exception."""
    settings = spec["settings"]
    argv = settings["argv"]
    if folder := settings.get("cwd"):
        os.chdir(folder)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - running what was asked for is the point
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.exists(argv[0]):
            message = f"command {argv[0]!r} not found on the worker; check PATH"
            raise FileNotFoundError(message) from None
        # The system's error does not say which program it was.
        raise type(error)(error.errno, error.strerror, argv[0]) from None
