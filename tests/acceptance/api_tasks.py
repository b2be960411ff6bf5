"""Tasks of a user's module, for acceptance tests with real child processes."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import longshore
from longshore.errors import UsageError


@dataclass
class Visit:
    url: str
    at: datetime
    process: int


@longshore.task
def visit(url: str, at: datetime) -> Visit:
    print(f"visiting {url}")  # noqa: T201 - its output
    return Visit(url, at + timedelta(days=1), os.getpid())


@longshore.task
async def urls(visits: list[Visit]) -> dict[str, datetime]:
    await asyncio.sleep(0)
    return {visit.url: visit.at for visit in visits}


@longshore.task(isolation="spawn")
def spawned(number: int) -> int:
    return number + 1


@longshore.task(isolation="pool")
def pooled(number: int) -> int:
    return number + 1


@longshore.task
def waiting(folder: Path) -> str:
    """Waits for a file; says so first."""
    print("waiting", flush=True)  # noqa: T201 - its output
    (folder / f"pid-{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)  # noqa: TID251 - another process creates the file without a signal
    return "gone on"


@longshore.task
def noting(folder: Path) -> int:
    """How often it has run."""
    notes = folder / "notes"
    with notes.open("a") as file:
        file.write("x")
    return notes.stat().st_size


@longshore.task(max_attempts=2, retry={"base": "10ms", "cap": "10ms"})
def needing(file: Path) -> str:
    """Fails for good unless the file is there."""
    return file.read_text()


@longshore.task
def in_steps(folder: Path) -> list[int]:
    step = longshore.current().step
    first = step("first", lambda: noting(folder))
    step("wait", lambda: waiting(folder))
    return [first, noting(folder)]


NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def _opens_the_default_store() -> list[str]:
    """What was not refused, and what is in the folder then."""
    accepted = []
    job = '{"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["true"]}}]}'
    with contextlib.suppress(UsageError):
        longshore.run(pooled.of(1))
        accepted.append("run was not refused")
    with contextlib.suppress(UsageError), longshore.Client():
        accepted.append("Client was not refused")
    for arguments in (["run", "--", "true"], ["submit", "-"]):
        command = [sys.executable, "-m", "longshore", *arguments]
        result = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
        if result.returncode != 2 or "--data-dir" not in result.stderr:
            accepted.append(f"{arguments}: {result.returncode}, {result.stderr}")
    return [*accepted, *(path.name for path in Path.cwd().iterdir())]


@longshore.task
def forked_opens() -> list[str]:
    return _opens_the_default_store()


@longshore.task(isolation="pool")
def pooled_opens() -> list[str]:
    return _opens_the_default_store()


@longshore.task(isolation="spawn")
def spawned_opens() -> list[str]:
    return _opens_the_default_store()


@longshore.task
def opens(folder: Path) -> int:
    with longshore.Client(folder) as client:
        return len(client.submit(pooled.of(1)).status().tasks)
