"""Functions that end in every possible way, for acceptance tests with real child processes."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from longshore import Fail, Retry, current

SECRET = "hunter2-" + "Zx81kQ0vRt5yLm2Np9Wb3Ds6"


def gives() -> list[int]:
    return [1, 2]


def hangs_up_once() -> int:
    if current().attempt == 1:
        raise ConnectionResetError
    return current().attempt


def asks_for_another_attempt() -> int:
    if current().attempt == 1:
        raise Retry("not yet", after=0.01)
    return current().attempt


def gives_up() -> None:
    raise Fail("never", category="network")


def gets_it_wrong() -> None:
    message = f"login failed: password={SECRET}"
    raise ValueError(message)


def ends_without_a_word() -> None:
    os._exit(0)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills_a_worker(folder: str, key: str) -> None:
    """Kills the worker whose process id is in a file, if there is one."""
    Path(folder, f"begun-{key}").touch()
    worker = Path(folder, "worker")
    if worker.exists():
        os.kill(int(worker.read_text()), signal.SIGKILL)
        signal.pause()


def notes_its_attempt(path: str, key: str, seconds: float) -> None:
    """In a file that is shared by all attempts of a test; takes so long."""
    with Path(path).open("a") as notes:
        notes.write(f"{key} {current().attempt}\n")
    time.sleep(seconds)  # noqa: TID251 - its work


def looks_around(note: str) -> dict[str, Any]:
    folder = Path.cwd()
    return {
        "note": note,
        "files": [path.name for path in folder.rglob("*") if path.is_file()],
        "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "mode": folder.stat().st_mode & 0o777,
        "folder": str(folder),
        "argv": Path("/proc/self/cmdline").read_text(),
        "environment": dict(os.environ),  # noqa: TID251 - what a child has of it
    }


def prints_on_both_streams() -> None:
    for number in range(3):
        print("out", number, flush=True)  # noqa: T201 - its output
        print("err", number, file=sys.stderr, flush=True)  # noqa: T201


def waits(begun: str, *, stubborn: bool = False) -> None:
    """Until it is ended; with a child of its own, which is not to outlive it."""
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    below = os.fork()
    if below:
        # The rename makes the file appear complete: a waiting test reads it at once.
        Path(f"{begun}.part").write_text(f"{os.getpid()} {below}")
        Path(f"{begun}.part").rename(begun)
    while True:
        time.sleep(60)  # noqa: TID251 - another process ends it
