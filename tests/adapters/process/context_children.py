"""Functions that use all that a running task may ask of Longshore."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from longshore.runners.context import current


def tells() -> str:
    ctx = current()
    folder = Path("made")
    folder.mkdir()
    (folder / "report.csv").write_text("1,2\n")
    ctx.log("begin")
    ctx.progress(1, 2, "halves")
    ctx.artifact(folder / "report.csv")
    ctx.artifact(folder, "all")
    os.chdir("/")
    ctx.summary("one half is done")
    return ctx.idempotency_key


def tells_and_dies() -> None:
    tells()
    os._exit(7)


async def steps_at_once() -> list[Any]:
    ctx = current()

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number * number

    names = [f"step {number}" for number in range(10)]
    done = await asyncio.gather(
        *(ctx.astep(name, lambda n=n: work(n)) for n, name in enumerate(names))
    )
    return [*done, ctx.step("plain", lambda: "in between")]


def looks() -> None:
    ctx = current()
    _say(f"ready {ctx.cancelled}")
    while not ctx.cancelled:
        threading.Event().wait(0.005)
    ctx.step("tidied", lambda: True)
    _say("tidied up")


async def looks_now_and_then() -> None:
    ctx = current()
    _say(f"ready {ctx.cancelled}")
    while not ctx.cancelled:
        await asyncio.sleep(0.005)
    _say("tidied up")


def never_looks() -> None:
    _say("ready")
    threading.Event().wait()


def looks_once() -> None:
    _say(f"ready {current().cancelled}")
    threading.Event().wait()


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())
