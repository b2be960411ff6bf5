"""A supervisor with real workers, in a process that can be killed, and what it says."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.acceptance.conftest import TIMEOUT_S, wait_until

LONGSHORE = (sys.executable, "-m", "longshore")


class SupervisorProcess:
    """``longshore worker --processes N`` on a data folder."""

    def __init__(self, data_dir: Path, *options: str, **settings: str) -> None:
        variables = {f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}
        self.process = subprocess.Popen(
            [*LONGSHORE, "worker", "--data-dir", str(data_dir), *options],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **variables},
            cwd=data_dir.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._handles: list[int] = []
        # Read all the time: no process may block because a pipe is full.
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            # A handle stays with its process; a number may go to another one.
            if '"worker.started"' in line:
                with contextlib.suppress(ProcessLookupError):
                    self._handles.append(os.pidfd_open(json.loads(line)["pid"]))
            self.lines.append(line)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def log_records(self, event: str) -> list[dict[str, Any]]:
        """Records of the supervisor about an event, the oldest first."""
        records = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [record for record in records if record["event"] == event]

    @property
    def process_ids(self) -> list[int]:
        """Of every worker that was ever started, the oldest first."""
        return [record["pid"] for record in self.log_records("worker.started")]

    def count_lines(self, text: str) -> int:
        """How many lines have this text."""
        return sum(text in line for line in list(self.lines))

    async def wait_for_text(self, text: str, times: int = 1) -> None:
        await self._wait_until(lambda: self.count_lines(text) >= times)

    async def wait_for_record(self, event: str, times: int = 1) -> None:
        await self._wait_until(lambda: len(self.log_records(event)) >= times)

    async def _wait_until(self, check: Any) -> None:
        async def result() -> bool:
            return bool(check())

        try:
            await wait_until(result)
        except TimeoutError as error:
            error.add_note("".join(self.lines))
            raise

    def wait(self) -> int:
        """The exit code; all output of the process has been read then."""
        code = self.process.wait(TIMEOUT_S)
        self._reading.join(TIMEOUT_S)
        return code

    def kill_all(self) -> None:
        """Leave nothing running, however the test went."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        for handle in self._handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._reading.join(TIMEOUT_S)
        self.process.stderr.close()


def alive(process_id: int) -> bool:
    """Whether it runs: one that has ended and waits for its parent does not."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(") ")[2][0] != "Z"


async def wait_until_gone(process_ids: list[int]) -> None:
    async def gone() -> bool:
        return not any(alive(process_id) for process_id in process_ids)

    await wait_until(gone)
