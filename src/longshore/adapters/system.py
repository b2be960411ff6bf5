"""This machine: its clock, its memory, and the API key that it creates for itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from longshore.errors import ConfigurationError

# Linux has a monotonic clock that counts the time in which the machine was asleep.
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The event loop's clock stops while the machine is asleep. Short sleeps in a loop notice the time
# that has passed soon after the machine wakes up.
_MAX_SLEEP = timedelta(seconds=5)
_KEY_MODE, _KEY_FOLDER_MODE = 0o600, 0o700
_GROUP_AND_OTHERS = 0o077
_MAX_KEY_BYTES = 4096
_KEY_NAME_DIGITS = 32
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


class SystemClock:
    """See ``ports.clock.Clock``: the clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> timedelta:
        return timedelta(microseconds=time.clock_gettime_ns(_ELAPSED_CLOCK) // 1000)

    async def sleep(self, duration: timedelta) -> None:
        if asyncio._get_running_loop() is None:
            time.sleep(duration.total_seconds())  # noqa: ASYNC251 - there is no loop to block
            return
        end, left = self.elapsed() + duration, duration
        while True:
            # Long sleeps are interrupted together, so that the process wakes up once for all.
            await asyncio.sleep(min(left, _MAX_SLEEP - self.elapsed() % _MAX_SLEEP).total_seconds())
            if (left := end - self.elapsed()) <= timedelta(0):
                return


def key_file(keys: Path, folder: Path) -> Path:
    """The file in ``keys`` with the API key of the server on a data folder.

    Outside of the data folder, in which tasks have their folders: a relative path that leads out of
    those does not lead to the key. Each data folder has a file of its own.

    Raises:
        ConfigurationError: ``keys`` is in the data folder, or names a home that does not exist.
    """
    try:
        keys, folder = keys.expanduser().resolve(), folder.resolve()
    except RuntimeError as error:
        problem = f"{keys} has no home directory: set keys_dir (LONGSHORE_KEYS_DIR)"
        raise ConfigurationError([problem]) from error
    if keys.is_relative_to(folder):
        problem = f"keys_dir ({keys}) must not be in the data folder ({folder}), where tasks run"
        raise ConfigurationError([problem])
    return keys / hashlib.sha256(os.fsencode(folder)).hexdigest()[:_KEY_NAME_DIGITS]


def ensure_key(path: Path, make: Callable[[], str]) -> str:
    """The API key in a file that only its owner can read; created if it is missing.

    Of two concurrent callers, both get the key of the first.

    Raises:
        ConfigurationError: other users can read the file, it contains no key, or it cannot be
            created.
    """
    while (text := read_key(path)) is None:
        draft = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(_KEY_FOLDER_MODE, parents=True, exist_ok=True)
            _write(draft, make())
            # Atomic, and never replaces an existing file.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            _sync(path.parent)
        except OSError as error:
            problem = f"the server's key cannot be stored: {error}; see the setting keys_dir"
            raise ConfigurationError([problem]) from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    return text


def read_key(path: Path) -> str | None:
    """The API key in a file, if there is one.

    Raises:
        ConfigurationError: other users can read the file, or it contains no key.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_KEY_BYTES).decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if mode & _GROUP_AND_OTHERS:
        problem = f"{path} can be read by other users: run `chmod 600 {path}` and create a new key"
        raise ConfigurationError([problem])
    if not text or not text.isascii():
        problem = f"{path} contains no key: remove it, and a new key is created"
        raise ConfigurationError([problem])
    return text


def _write(path: Path, text: str) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _KEY_MODE)
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


def machine_memory(
    cgroup_root: Path = _CGROUP_ROOT, own_cgroups: Path = _OWN_CGROUPS
) -> int | None:
    """Memory of the machine or of its container in bytes; None: unknown."""
    return min((*_physical(), *_cgroup_limits(cgroup_root, own_cgroups)), default=None)


def _physical() -> Iterator[int]:
    with contextlib.suppress(ValueError, OSError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits(groups: Path, own_groups: Path) -> Iterator[int]:
    """Limits of this process's control group and all of its parents, in cgroups v1 and v2."""
    with contextlib.suppress(OSError):
        for line in own_groups.read_text().splitlines():
            number, kinds, path = line.split(":", 2)
            if number == "0":
                root, file = groups, "memory.max"
            elif "memory" in kinds.split(","):
                root, file = groups / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = PurePosixPath(path.lstrip("/"))
            # Inside a container, its own group is the root.
            for path_in_root in (group, *group.parents):
                # "max" means no limit, and is not a number.
                with contextlib.suppress(ValueError, OSError):
                    yield int((root / path_in_root / file).read_text())
