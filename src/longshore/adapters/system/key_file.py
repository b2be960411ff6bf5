"""The key that a machine makes for itself: one file, for its owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from longshore.errors import ConfigurationError

FILE_NAME = "api-key"
_MODE = 0o600
_GROUP_AND_OTHERS = 0o077
_MAX_BYTES = 4096


def ensure_key(folder: Path, make: Callable[[], str]) -> str:
    """The key in the folder's file; made if there is none. Whoever is second gets the first's.

    Raises:
        ConfigurationError: others can read the file, or it holds no key.
    """
    path = folder / FILE_NAME
    while (text := read_key(folder)) is None:
        draft = folder / f".{FILE_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            _write(draft, make())
            # Whole or not at all, and never over what is there.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            _sync(folder)
        finally:
            draft.unlink(missing_ok=True)
    return text


def read_key(folder: Path) -> str | None:
    """The key in the folder's file, if there is one.

    Raises:
        ConfigurationError: others can read the file, or it holds no key.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    if mode & _GROUP_AND_OTHERS:
        problem = f"{path} can be read by others: `chmod 600 {path}`, and make a new key"
        raise ConfigurationError([problem])
    if not text or not text.isascii():
        problem = f"{path} holds no key: remove it, and a new one is made"
        raise ConfigurationError([problem])
    return text


def _write(path: Path, text: str) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
