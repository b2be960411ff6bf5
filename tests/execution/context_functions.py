"""Functions that use all that a running task may ask of Longshore."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from longshore.execution.runners.context import current


def reports_everything() -> str:
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


def reports_everything_and_dies() -> None:
    reports_everything()
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


def polls_cancelled() -> None:
    ctx = current()
    _print(f"ready {ctx.cancelled}")
    while not ctx.cancelled:
        threading.Event().wait(0.005)
    ctx.step("tidied", lambda: True)
    _print("tidied up")


async def polls_cancelled_async() -> None:
    ctx = current()
    _print(f"ready {ctx.cancelled}")
    while not ctx.cancelled:
        await asyncio.sleep(0.005)
    _print("tidied up")


def never_polls_cancelled() -> None:
    _print("ready")
    threading.Event().wait()


def polls_cancelled_once() -> None:
    _print(f"ready {current().cancelled}")
    threading.Event().wait()


def _print(text: str) -> None:
    os.write(1, f"{text}\n".encode())
