"""Runs the command line as a process, or as a process in a terminal.

Nothing here sleeps: a test that waits for something reads the bytes that show it.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState
from longshore.settings import load_settings
from longshore.wiring.services import open_services

TIMEOUT_S = 60
needs_mounts = pytest.mark.skipif(
    (sys.platform != "linux" or os.getuid() != 0) and os.environ.get("CI") != "true",  # noqa: TID251
    reason="NOT TESTED: only root can mount a small disk",
)
LONGSHORE = (sys.executable, "-m", "longshore")
SCRIPT = Path(sys.executable).parent / "longshore"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs commands in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}

    def __call__(
        self, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> CommandResult:
        ended = subprocess.run(
            [*LONGSHORE, *arguments],
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return CommandResult(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command without waiting; leaving the ``with`` block waits for it."""
        return subprocess.Popen(
            [*LONGSHORE, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def on_small_disk(
        self, script: str, *, size: str = "8m", **options: Any
    ) -> subprocess.Popen[str]:
        """Start a script whose data folder is a small disk, which only its processes see.

        In it, $LONGSHORE is the command line and ``fill`` leaves no free space.
        """
        (self.folder / ".longshore").mkdir(mode=0o700)
        prepared = f"""
            set -e
            mount -t tmpfs -o size={size},mode=700 none .longshore
            fill() {{ dd if=/dev/zero of=.longshore/filler bs=4k status=none 2>/dev/null || true; }}
            {script}
        """
        return subprocess.Popen(
            ["unshare", "-m", "sh", "-c", prepared],
            cwd=self.folder,
            env={**self.environment, "LONGSHORE": " ".join(LONGSHORE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def terminal(self, *arguments: str, env: dict[str, str] | None = None) -> "Terminal":
        """Start a command in its own terminal."""
        return Terminal(self, arguments, env or {})

    def jobs(self) -> list[JobRow]:
        """The jobs in the store, read in this process: faster than another process."""

        async def read() -> list[JobRow]:
            settings = load_settings({"data_dir": self.folder / ".longshore"}, environ={})
            async with open_services(settings) as services:
                return list((await services.backend.ledger.list_jobs("default")).items)

        return asyncio.run(read())

    def only_job_state(self) -> JobState:
        """The state of the only job."""
        (job,) = self.jobs()
        return job.state

    def make_fifo(self, name: str) -> Path:
        """A named pipe: opening it blocks until the other end is opened."""
        path = self.folder / name
        os.mkfifo(path)
        return path


class Terminal:
    """A command in a terminal: its output, and keys to press."""

    def __init__(self, cli: Cli, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 100))
        self.shown = ""
        self.process = subprocess.Popen(
            [*LONGSHORE, *arguments],
            cwd=cli.folder,
            env={**cli.environment, "TERM": "xterm-256color", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Makes it the controlling terminal, so that Ctrl-C sends a signal.
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._master)

    @property
    def text(self) -> str:
        """The output without control sequences."""
        return _CONTROL.sub("", self.shown).replace("\r\n", "\n")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, text: str) -> None:
        """Read until this text is shown."""
        end = time.monotonic() + TIMEOUT_S
        while text not in self.text:
            assert time.monotonic() < end, f"{text!r} was not shown:\n{self.text}"
            assert self._read(), f"ended without showing {text!r}:\n{self.text}"

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            continue
        return self.process.wait(TIMEOUT_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], TIMEOUT_S)
        assert ready, f"nothing more was shown:\n{self.text}"
        # Reading from a terminal whose last process has ended raises an error.
        with contextlib.suppress(OSError):
            if piece := os.read(self._master, 65536):
                self.shown += piece.decode(errors="replace")
                return True
        return False


def is_alive(process_id: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def send_signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to a process that a test started."""
    os.kill(process.pid, number)
