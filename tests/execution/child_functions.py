"""Functions that tests let children run."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from longshore.errors import Fail, Retry
from longshore.execution.runners.context import current


def add(a: int, b: int = 0) -> int:
    return a + b


def length(text: str) -> int:
    return len(text)


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def raises(name: str) -> None:
    errors: dict[str, BaseException] = {
        "value": ValueError("no good"),
        "key": KeyError("missing"),
        "connection": ConnectionResetError("hung up"),
        "timeout": TimeoutError("too slow"),
        "file": FileNotFoundError(2, "No such file", "missing"),
        "memory": MemoryError(),
        "retry": Retry("later", after=7),
        "fail": Fail("never", category="auth"),
        "exit": SystemExit(4),
        "interrupt": KeyboardInterrupt(),
    }
    raise errors[name]


def talks() -> None:
    for number in range(3):
        sys.stdout.write(f"out {number}\n")
        sys.stderr.write(f"err {number}\n")


def no_json() -> Any:
    return {1, 2}


def not_a_number() -> float:
    return float("nan")


def vanishes(code: int) -> None:
    os._exit(code)


def waits() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()


def dies(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def sees(note: str) -> dict[str, Any]:
    """What a child can find out about itself, and the argument that it was given."""
    folder = Path.cwd()
    return {
        "argv": Path("/proc/self/cmdline").read_text().split("\0"),
        "environment": dict(os.environ),  # noqa: TID251
        "folder": str(folder),
        "folder_mode": folder.stat().st_mode & 0o777,
        "file_modes": sorted({path.stat().st_mode & 0o777 for path in folder.iterdir()}),
        "session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "process_id": os.getpid(),
        "note": note,
    }


def steps(fail: bool = False) -> list[Any]:
    context = current()
    context.log("begin")
    done = [context.step(name, lambda name=name: name.upper()) for name in ("one", "two")]
    if fail:
        raise ConnectionError
    return [*done, context.dependency_outputs, context.attempt, context.idempotency_key]


def takes_one_step_and_waits() -> None:
    current().step("one", lambda: 1)
    signal.pause()


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        signal.pause()


def logs(text: str) -> None:
    current().log(text)
