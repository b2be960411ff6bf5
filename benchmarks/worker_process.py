"""A worker in a process of its own: ``longshore worker`` where there is one, else this module."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.system import open_system, run_worker

ROOT = Path(__file__).parents[1]

_READY_WITHIN_S = 30.0
_STOPS_WITHIN_S = 60.0
_POLL_S = 0.02


def command_line(command: str) -> str | None:
    """The program that users call; None while it does not know the command."""
    program = Path(sys.executable).with_name("longshore")
    module = f"longshore.interfaces.cli.{command}"
    return str(program) if find_spec(module) and program.exists() else None


def worker_program() -> str | None:
    """The program whose ``worker`` is what users run; None: a script with the same wiring."""
    return command_line("commands.worker")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's variables without settings, so that the defaults are measured."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("LONGSHORE_")}
    return {**inherited, **more}


@contextlib.contextmanager
def run_worker_process(folder: Path, **settings: str) -> Iterator[int]:
    """A worker that serves ``folder``, ready for work; gives its process id.

    Args:
        settings: Variables for those that are not to be as they are by default.
    """
    program = worker_program()
    argv = [program, "worker"] if program else [sys.executable, "-m", __name__, str(folder)]
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=clean_environment(LONGSHORE_DATA_DIR=str(folder), **settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_until_ready(process, folder, log)
        yield process.pid
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    # A worker locks a file as soon as it is there.
    while not list((folder / "workers").glob("*.lock")):
        assert process.poll() is None, f"the worker ended: {log.read_text()}"
        assert time.monotonic() < deadline, f"the worker is not ready: {log.read_text()}"
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def serve(folder: Path) -> None:
    """Work until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with open_system(folder) as services, run_worker(services):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
