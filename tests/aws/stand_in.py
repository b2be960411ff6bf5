"""The AWS stand-in: one a test process, started when it is first needed, ended with it."""

import atexit
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import httpx2
import pytest

from longshore.adapters.aws.client import AwsClientOptions
from longshore.testing.clock import FakeClock

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "aws-stand-in" / "bin" / "python"
REGION = "eu-central-1"
ACCOUNT = "000000000000"
_REAL_TIME = 0.0
_STARTS_WITHIN_S = 60


class StandIn:
    """A running stand-in."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="longshore-aws-")
        self._time = Path(self._folder.name) / "time"
        self._write_time(_REAL_TIME)
        self._stages = count(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self._log = (Path(self._folder.name) / "log").open("w")
        self._process = subprocess.Popen(
            [PYTHON, Path(__file__).with_name("moved_clock.py"), self._time],
            env={
                **os.environ,  # noqa: TID251
                "GATEWAY_PORT": str(port),
                "BIND_HOST": "127.0.0.1",
                "TMPDIR": self._folder.name,
                "LOG_LEVEL": "WARNING",
            },
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        atexit.register(self._stop)
        self._wait_until_ready()

    @property
    def client_options(self) -> AwsClientOptions:
        return AwsClientOptions(
            region=REGION, endpoint_url=self.endpoint, credentials=("testing", "testing")
        )

    def new_stage(self) -> str:
        """A name under which nothing was made yet."""
        return f"t{next(self._stages)}"

    @contextmanager
    def follow_clock(self, clock: FakeClock) -> Iterator[None]:
        """Queues live in the time of a test's clock."""
        self._write_time(clock.now().timestamp())
        try:
            with clock.watched_by(lambda: self._write_time(clock.now().timestamp())):
                yield
        finally:
            self._write_time(_REAL_TIME)

    def reset(self) -> None:
        """Forget everything."""
        httpx2.post(f"{self.endpoint}/_ministack/reset", timeout=30).raise_for_status()

    def _write_time(self, moment: float) -> None:
        # In one write of one block, so that the other side reads the old or the new.
        with self._time.open("r+b" if self._time.exists() else "w+b") as file:
            file.write(struct.pack("d", moment))

    def _wait_until_ready(self) -> None:
        ends = time.monotonic() + _STARTS_WITHIN_S
        while True:
            try:
                httpx2.get(f"{self.endpoint}/_ministack/health", timeout=5).raise_for_status()
            except httpx2.HTTPError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    log = (Path(self._folder.name) / "log").read_text()
                    pytest.fail(f"the AWS stand-in did not start:\n{log}")
                time.sleep(0.02)  # noqa: TID251 - another process starts without a signal
            else:
                return

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


@cache
def stand_in() -> StandIn:
    """The stand-in of this process."""
    if not PYTHON.exists():
        message = f"no AWS stand-in at {PYTHON.parents[1]}: `make test` installs it"
        if os.environ.get("CI"):  # noqa: TID251
            pytest.fail(message)
        pytest.skip(message)
    return StandIn()
