"""``longshore up``: everything in one process, for whoever has the key."""

import contextlib
import re
import signal
import stat
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.interfaces.doors import PATIENCE_S, Cli

ADDRESS = re.compile(r"longshore is up at (http://\S+)")
HELLO = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["echo", "hello"]}}]}
SLOW = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["sleep", "1"]}}]}


Up = tuple[subprocess.Popen[str], httpx.Client]


@contextlib.contextmanager
def up(cli: Cli, *options: str) -> Iterator[Up]:
    """The process, and a client that has its key."""
    with cli.start("up", "--port", "0", *options) as process:
        try:
            assert process.stdout is not None
            found = ADDRESS.match(process.stdout.readline())
            assert found, process.communicate()
            key = (cli.folder / ".longshore" / "api-key").read_text().strip()
            with httpx.Client(
                base_url=found[1], headers={"x-api-key": key}, timeout=PATIENCE_S
            ) as client:
                yield process, client
        finally:
            if process.poll() is None:
                process.kill()


def ended(client: httpx.Client, job_id: str) -> str:
    """The state of the job's only task when that has ended: its stream lasts as long."""
    client.get(f"/v1/jobs/{job_id}/tasks/a/output/stream")
    return str(client.get(f"/v1/jobs/{job_id}/tasks/a").json()["status"])


def begun(client: httpx.Client, job_id: str) -> None:
    """Return when the job's only task runs."""
    with client.stream("GET", f"/v1/jobs/{job_id}/tasks/a/events/stream") as events:
        next(line for line in events.iter_lines() if "Task Processing Started" in line)


def test_a_job_that_is_submitted_is_done_and_ctrl_c_ends_in_good_order(cli: Cli) -> None:
    with up(cli) as (process, client):
        assert client.get("/ready").json() == {"status": "ok"}
        job_id = client.post("/v1/jobs", json=HELLO).json()["jobId"]
        assert ended(client, job_id) == "completed"

        process.send_signal(signal.SIGINT)

        assert process.wait(PATIENCE_S) == 0
    assert stat.S_IMODE((cli.folder / ".longshore" / "api-key").stat().st_mode) == 0o600


def test_what_runs_may_finish_when_it_is_stopped(cli: Cli) -> None:
    with up(cli) as (process, client):
        job_id = client.post("/v1/jobs", json=SLOW).json()["jobId"]
        begun(client, job_id)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    (job,) = cli.jobs()
    assert job.state.value == "completed"


def test_without_a_worker_tasks_wait_for_one_that_runs_beside_it(cli: Cli) -> None:
    with up(cli, "--no-worker") as (_, client):
        job_id = client.post("/v1/jobs", json=HELLO).json()["jobId"]
        assert client.get(f"/v1/jobs/{job_id}/tasks/a").json()["status"] == "pending"

        assert cli("worker", "--burst").code == 0

        assert ended(client, job_id) == "completed"


def test_an_address_that_is_taken_is_said_before_anything_is_stored(cli: Cli) -> None:
    with up(cli) as (_, client):
        port = str(client.base_url.port)

        second = cli("up", "--port", port, "--data-dir", str(cli.folder / "other"))

        assert second.code == 2
        assert f"cannot listen at 127.0.0.1 port {port}" in second.err
        assert not (cli.folder / "other").exists()


def test_the_key_stays_the_same_and_a_file_that_others_can_read_is_refused(cli: Cli) -> None:
    with up(cli) as (_, client):
        first = client.headers["x-api-key"]
    with up(cli) as (_, client):
        assert client.headers["x-api-key"] == first
        assert client.get("/v1/jobs").status_code == 200
    (cli.folder / ".longshore" / "api-key").chmod(0o644)

    answer = cli("up", "--port", "0")

    assert answer.code != 0
    assert "chmod 600" in answer.err
    assert first not in answer.err


@pytest.mark.parametrize("options", [("--port", "70000"), ("--host", "no host")])
def test_an_address_that_is_none_is_refused(cli: Cli, options: tuple[str, str]) -> None:
    answer = cli("up", *options)

    assert answer.code == 2
    assert not (cli.folder / ".longshore").exists()
