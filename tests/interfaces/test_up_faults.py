"""A server in a lasting fault: no descriptors, no folder for wake-ups, a full disk.

Each fault lasts while 200 jobs run. Afterwards everything completes without a restart, ``/ready``
was right throughout, and SIGTERM ends the process. ``LONGSHORE_TEST_FAULT_SECONDS`` is how long the
idle connections are held; 60 in the long form.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from longshore.settings import load_settings
from tests.interfaces.command_line import LONGSHORE, TIMEOUT_S, Cli, needs_mounts
from tests.interfaces.test_cli_up import ADDRESS

HOLD_S = float(os.environ.get("LONGSHORE_TEST_FAULT_SECONDS", "3"))  # noqa: TID251
JOBS = 200
CONNECTIONS = 300
DESCRIPTORS = 256
STOP_S = load_settings({}, environ={}).stop_deadline.total_seconds()
BATCH = 20


@dataclass
class Server:
    """A process of ``longshore up``, its client, and what ``/ready`` has answered."""

    folder: Path
    process: subprocess.Popen[str]
    client: httpx2.Client
    accepted: list[str] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)

    def ready(self) -> tuple[int, str]:
        """The status of ``/ready``, and its reason; 0: it did not answer."""
        try:
            answer = self.client.get("/ready")
        except httpx2.TransportError as error:
            return 0, str(error)
        self.answers.append((answer.status_code, answer.json().get("detail", "")))
        return self.answers[-1]

    def until_ready(self, status: int) -> str:
        """Wait for this status. Returns the reason."""
        deadline = time.monotonic() + TIMEOUT_S
        while (last := self.ready())[0] != status:
            assert time.monotonic() < deadline, last
            threading.Event().wait(0.1)  # its answer may be five seconds old: nothing wakes us
        return last[1]

    def submit(self, count: int) -> int:
        """Submit jobs, in batches. Returns how many were accepted."""
        tasks = [{"taskId": "a", "name": "command", "input": {"argv": ["true"]}}]
        before = len(self.accepted)
        for start in range(0, count, BATCH):
            jobs = [{"job": {"tasks": tasks}}] * min(BATCH, count - start)
            with contextlib.suppress(httpx2.TransportError):
                answer = self.client.post("/v1/jobs/batch", json={"jobs": jobs})
                if answer.status_code == 200:
                    items = answer.json()["answers"]
                    self.accepted += [item["job"]["jobId"] for item in items if item.get("job")]
        return len(self.accepted) - before

    def wait_for_jobs(self) -> None:
        """Wait until everything that was accepted has completed."""
        for job_id in self.accepted:
            self.client.get(f"/v1/jobs/{job_id}/events/stream")  # ends with the job
            assert self.client.get(f"/v1/jobs/{job_id}").json()["status"] == "completed"

    def stop(self) -> None:
        """SIGTERM ends it in time."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_S) == 0


@contextlib.contextmanager
def connected(process: subprocess.Popen[str], folder: Path) -> Iterator[Server]:
    try:
        assert process.stdout is not None
        address = ADDRESS.match(process.stdout.readline())
        assert address, process.communicate()
        (key_file,) = (folder.parent / ".config/longshore/keys").iterdir()
        key = key_file.read_text().strip()
        headers = {"x-api-key": key}
        with httpx2.Client(base_url=address[1], headers=headers, timeout=TIMEOUT_S) as client:
            yield Server(folder, process, client)
    finally:
        if process.poll() is None:
            process.kill()


@contextlib.contextmanager
def up(cli: Cli, **options: Any) -> Iterator[Server]:
    environment = {"LONGSHORE_API_REQUESTS_PER_SECOND": "100000", "LONGSHORE_API_BURST": "100000"}
    with (
        (cli.folder / "log").open("w") as log,
        subprocess.Popen(
            [*LONGSHORE, "up", "--port", "0"],
            cwd=cli.folder,
            env={**cli.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            **options,
        ) as process,
        connected(process, cli.folder / ".longshore") as server,
    ):
        yield server


def test_idle_connections_that_use_up_the_descriptors(cli: Cli) -> None:
    limits = (DESCRIPTORS, DESCRIPTORS)
    with up(cli, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)) as server:
        server.until_ready(200)
        url = server.client.base_url
        held_until = time.monotonic() + HOLD_S
        opened: list[socket.socket] = []
        submitted = 0
        while time.monotonic() < held_until or submitted < JOBS:
            # Those that the server has closed are opened again.
            opened = [connection for connection in opened if not _is_closed(connection)]
            while len(opened) < CONNECTIONS:
                opened.append(socket.create_connection((url.host, url.port), TIMEOUT_S))
                with contextlib.suppress(OSError):
                    opened[-1].sendall(b"GET /live HTTP/1.1\r\n")
            if submitted < JOBS:
                submitted += server.submit(BATCH)
            # A connection may be refused; an answer must be that it is ready.
            assert server.ready()[0] in (0, 200)
        for connection in opened:
            connection.close()
        server.wait_for_jobs()

        assert len(server.accepted) >= JOBS
        assert {status for status, _ in server.answers} == {200}
        server.stop()
    assert "Too many open files" not in (cli.folder / "log").read_text()


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection; then this end is closed too."""
    connection.setblocking(False)
    try:
        is_closed = not connection.recv(1)
    except BlockingIOError:
        is_closed = False
    except OSError:
        is_closed = True
    if is_closed:
        connection.close()
    return is_closed


def test_a_removed_folder_of_wake_ups(cli: Cli) -> None:
    log = cli.folder / "log"
    with up(cli) as server:
        server.until_ready(200)
        server.submit(JOBS // 2)
        shutil.rmtree(server.folder / "wakeups")
        server.submit(JOBS // 2)
        server.wait_for_jobs()
        # A commit looks for the folder only if a worker waits, so perhaps none of these did.
        while "sqlite.wakeup_failed" not in log.read_text():
            server.submit(1)
            server.wait_for_jobs()
        server.submit(BATCH)
        server.until_ready(200)
        server.wait_for_jobs()

        assert len(server.accepted) >= JOBS + BATCH
        assert {status for status, _ in server.answers} == {200}
        server.stop()


@needs_mounts
def test_a_full_disk(cli: Cli) -> None:
    # Filled and emptied from outside, through the root of the process that sees the disk.
    script = "export LONGSHORE_API_REQUESTS_PER_SECOND=100000 LONGSHORE_API_BURST=100000"
    with cli.on_small_disk(
        f"{script}; exec $LONGSHORE up --port 0 2>{cli.folder}/log", size="16m"
    ) as process:
        folder = Path(f"/proc/{process.pid}/root{cli.folder}/.longshore")
        with connected(process, folder) as server:
            server.until_ready(200)
            server.submit(JOBS // 2)
            _fill(folder / "filler")
            reason = server.until_ready(503)
            server.submit(JOBS // 2)
            full = len(server.answers)
            assert server.ready()[0] == 503
            (folder / "filler").unlink()
            server.until_ready(200)
            server.submit(JOBS - len(server.accepted))
            server.wait_for_jobs()

            assert f"disk full: {cli.folder}/.longshore has " in reason
            assert len(server.accepted) >= JOBS
            assert {status for status, _ in server.answers[:full]} <= {200, 503}
            assert all("disk full" in text for status, text in server.answers if status == 503)
            server.stop()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
