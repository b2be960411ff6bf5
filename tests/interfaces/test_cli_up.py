"""``longshore up``: the API and a worker in one process."""

import contextlib
import json
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"longshore is up at (http://\S+)")
HELLO = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["echo", "hello"]}}]}
SLOW = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["sleep", "1"]}}]}


Up = tuple[subprocess.Popen[str], httpx2.Client]


def key_file(cli: Cli) -> Path:
    """The file of the server's key."""
    (path,) = (cli.folder / ".config/longshore/keys").iterdir()
    return path


@contextlib.contextmanager
def up(cli: Cli, *options: str, **process_options: Any) -> Iterator[Up]:
    """The process, and a client that has its key."""
    with cli.start("up", "--port", "0", *options, **process_options) as process:
        try:
            assert process.stdout is not None
            address = ADDRESS.match(process.stdout.readline())
            assert address, process.communicate()
            key = key_file(cli).read_text().strip()
            with httpx2.Client(
                base_url=address[1], headers={"x-api-key": key}, timeout=TIMEOUT_S
            ) as client:
                yield process, client
        finally:
            if process.poll() is None:
                process.kill()


def ended(client: httpx2.Client, job_id: str) -> str:
    """The state in which the job's only task ended; its event stream lasts until then."""
    client.get(f"/v1/jobs/{job_id}/tasks/a/output/stream")
    return str(client.get(f"/v1/jobs/{job_id}/tasks/a").json()["status"])


def begun(client: httpx2.Client, job_id: str) -> None:
    """Wait until the job's only task runs."""
    with client.stream("GET", f"/v1/jobs/{job_id}/tasks/a/events/stream") as events:
        next(line for line in events.iter_lines() if "Task Processing Started" in line)


def test_a_submitted_job_completes_and_ctrl_c_stops_cleanly(cli: Cli) -> None:
    with up(cli) as (process, client):
        assert client.get("/ready").json() == {"status": "ok"}
        job_id = client.post("/v1/jobs", json=HELLO).json()["jobId"]
        assert ended(client, job_id) == "completed"

        process.send_signal(signal.SIGINT)

        assert process.wait(TIMEOUT_S) == 0
    assert stat.S_IMODE(key_file(cli).stat().st_mode) == 0o600


WALK = """
import os
import re

def look(folder, names):
    for path in filter(os.path.isfile, (os.path.join(folder, name) for name in names)):
        with open(path, "rb") as file:
            key = re.search(rb"lsk_[A-Za-z0-9_-]{40}", file.read(10**6))
            print("a key" if key else "a file", path)

folder = "."
while not os.path.samefile(folder, "/"):
    look(folder, os.listdir(folder))
    folder += "/.."
for folder, _, names in os.walk("../.."):
    look(folder, names)
"""


def test_a_task_does_not_find_the_servers_key_on_its_way_up_from_its_folder(cli: Cli) -> None:
    """Neither in a folder above its own, nor anywhere in the data folder."""
    walk = {"argv": [sys.executable, "-c", WALK]}
    with up(cli) as (_, client):
        job = {"tasks": [{"taskId": "a", "name": "command", "input": walk}]}
        job_id = client.post("/v1/jobs", json=job).json()["jobId"]
        assert ended(client, job_id) == "completed"
        output = client.get(f"/v1/jobs/{job_id}/tasks/a/output").json()["output"]

    shown = "".join(chunk["text"] for chunk in output)
    assert "a file ../../longshore.db\n" in shown
    assert "a key" not in shown
    assert key_file(cli).read_text().startswith("lsk_")


def test_a_key_in_the_data_folder_is_moved_out_of_it(cli: Cli) -> None:
    with up(cli) as (_, client):
        key = client.headers["x-api-key"]
    earlier = cli.folder / ".longshore" / "api-key"
    key_file(cli).rename(earlier)

    with up(cli) as (_, client):
        assert client.headers["x-api-key"] == key
        assert client.get("/v1/jobs").status_code == 200
    assert not earlier.exists()


def test_a_key_folder_in_the_data_folder_is_refused(cli: Cli) -> None:
    answer = cli("up", "--port", "0", env={"LONGSHORE_KEYS_DIR": ".longshore/keys"})

    assert answer.code == ExitCode.USAGE
    assert "must not be in the data folder" in answer.err


def test_running_tasks_may_finish_when_it_is_stopped(cli: Cli) -> None:
    with up(cli) as (process, client):
        job_id = client.post("/v1/jobs", json=SLOW).json()["jobId"]
        begun(client, job_id)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0

    (job,) = cli.jobs()
    assert job.state.value == "completed"


def test_it_may_open_more_files_than_it_was_started_with_and_its_tasks_may_not(cli: Cli) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tasks = [{"taskId": "a", "name": "command", "input": {"argv": ["sh", "-c", "ulimit -Sn"]}}]

    with up(cli, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))) as (
        process,
        client,
    ):
        soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        job_id = client.post("/v1/jobs", json={"tasks": tasks}).json()["jobId"]
        printed = client.get(f"/v1/jobs/{job_id}/tasks/a/output/stream").text

    assert soft == min(hard, 65_536)
    assert '"text":"256\\n"' in printed.replace(" ", "")


def test_without_a_worker_tasks_wait_for_a_separate_worker(cli: Cli) -> None:
    with up(cli, "--no-worker") as (_, client):
        job_id = client.post("/v1/jobs", json=HELLO).json()["jobId"]
        assert client.get(f"/v1/jobs/{job_id}/tasks/a").json()["status"] == "pending"

        assert cli("worker", "--burst").code == 0

        assert ended(client, job_id) == "completed"


def test_an_address_in_use_is_rejected_before_anything_is_stored(cli: Cli) -> None:
    with up(cli) as (_, client):
        port = str(client.base_url.port)

        second = cli("up", "--port", port, "--data-dir", str(cli.folder / "other"))

        assert second.code == 2
        assert f"cannot listen at 127.0.0.1 port {port}" in second.err
        assert not (cli.folder / "other").exists()


def test_the_key_stays_the_same_and_a_key_file_readable_by_others_is_rejected(cli: Cli) -> None:
    with up(cli) as (_, client):
        first = client.headers["x-api-key"]
    with up(cli) as (_, client):
        assert client.headers["x-api-key"] == first
        assert client.get("/v1/jobs").status_code == 200
    key_file(cli).chmod(0o644)

    answer = cli("up", "--port", "0")

    assert answer.code != 0
    assert "chmod 600" in answer.err
    assert first not in answer.err


@pytest.mark.parametrize("options", [("--port", "70000"), ("--host", "no host")])
def test_an_invalid_address_is_rejected(cli: Cli, options: tuple[str, str]) -> None:
    answer = cli("up", *options)

    assert answer.code == 2
    assert not (cli.folder / ".longshore").exists()


def screen(process: subprocess.Popen[str], last: str = "stop") -> str:
    """The output at startup, up to the line that begins with this."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].strip().startswith(last):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return "".join(lines)


def logged(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next log record with this event; earlier records are skipped."""
    assert process.stderr is not None
    for line in process.stderr:
        if (record := json.loads(line))["event"] == event:
            return dict(record)
    raise AssertionError(event)


def feed(cli: Cli, printed: str) -> None:
    """Write a definition whose tasks print this."""
    folder = cli.folder / "definitions"
    folder.mkdir(exist_ok=True)
    definition = {"name": "feed", "runner": "command", "options": {"argv": ["echo", printed]}}
    (folder / "feed.json").write_text(json.dumps(definition))


def quick(cli: Cli) -> None:
    """Check definition files every 20 ms."""
    (cli.folder / "longshore.toml").write_text('[definitions]\nwatch_every = "20ms"\n')


def version_of(client: httpx2.Client, name: str = "feed") -> tuple[int, list[str]]:
    document = client.get(f"/v1/task-definitions/{name}").json()
    return document["version"], document["options"]["argv"][1:]


def test_definitions_of_files_are_stored_at_startup_and_counted_on_the_screen(cli: Cli) -> None:
    shutil.copytree(ROOT / "examples" / "shop", cli.folder, dirs_exist_ok=True)
    with up(cli) as (process, client):
        shown = screen(process)
        assert (
            "definitions  1 in longshore.yaml and 3 in 2 files of definitions/"
            f" in {cli.folder} (4 new)"
        ) in shown
        assert "invalid" not in shown
        assert cli("submit", "morning.yaml", "--request-id", "r", "--wait").code == 0
        assert version_of(client, "mail-staff") == (1, ["dear all"])
    with up(cli) as (process, _):
        assert f"definitions/ in {cli.folder}\n" in screen(process)


def test_a_definition_with_a_secret_that_its_worker_does_not_give_is_refused(cli: Cli) -> None:
    variables = {"X": {"from": "DEPLOY"}, "Y": {"from": "OTHER"}, "Z": "text"}
    options = {"argv": ["true"], "env": variables}
    definition = {"name": "deploy", "runner": "command", "options": options}
    job = {"definitions": [definition], "tasks": [{"taskId": "a", "name": "deploy"}]}
    (cli.folder / "longshore.yaml").write_text(json.dumps({"definitions": [definition]}))
    (cli.folder / "longshore.toml").write_text("[worker]\ntask_secrets = ['DEPLOY']\n")

    with up(cli) as (process, client):
        shown = screen(process, "nothing")
        put = client.put("/v1/task-definitions/deploy", json=definition)
        submitted = client.post("/v1/jobs/batch", json={"jobs": [{"job": job}]})
        stored = client.get("/v1/task-definitions").json()
        del variables["Y"]
        accepted = client.put("/v1/task-definitions/deploy", json=definition)

    for answer in (put, submitted):
        assert '"status":422' in answer.text
        assert "options.env.Y" in answer.text
        assert "secret 'OTHER'" in answer.text
        assert "worker.task_secrets" in answer.text
        assert "DEPLOY" not in answer.text
    assert stored["definitions"] == []
    assert accepted.status_code == 200
    assert "secret 'OTHER'" in shown


def test_an_invalid_file_is_reported_and_the_others_are_stored(cli: Cli) -> None:
    quick(cli)
    feed(cli, "one")
    (cli.folder / "longshore.yaml").write_text('definitions:\n  a: {runner: "\\e[2J"}\ntasks: []\n')
    with up(cli) as (process, client):
        shown = screen(process, "nothing")
        assert "definitions  1 in 1 file of definitions/" in shown
        assert "invalid  longshore.yaml, line 3: tasks: unknown field; expected" in shown
        assert "invalid  longshore.yaml, line 2: definitions.a.runner: expected one of" in shown
        assert "nothing of an invalid file was stored; fix the file, and it is read again" in shown
        assert "\x1b" not in shown
        assert version_of(client) == (1, ["one"])
        (cli.folder / "longshore.yaml").write_text("definitions: {a: {runner: command}}\n")
        assert logged(process, "definition_file.fixed")["file"] == "longshore.yaml"
        assert logged(process, "definition.applied")["definition"] == "a"


def test_a_changed_file_is_a_new_version_and_a_job_keeps_its_version(
    cli: Cli,
) -> None:
    quick(cli)
    feed(cli, "one")
    with up(cli, "--no-worker") as (process, client):
        task = {"taskId": "a", "name": "feed"}
        before = client.post("/v1/jobs", json={"tasks": [task]}).json()["jobId"]
        logged(process, "definition.applied")

        feed(cli, "another")

        assert logged(process, "definition.applied")["version"] == 2
        after = client.post("/v1/jobs", json={"tasks": [task]}).json()["jobId"]
        assert cli("worker", "--burst").code == 0
        assert cli("logs", f"{before}_a").out == "one\n"
        assert cli("logs", f"{after}_a").out == "another\n"


def test_a_version_stored_through_the_api_is_replaced_only_by_a_changed_file(
    cli: Cli,
) -> None:
    quick(cli)
    feed(cli, "one")
    other = {"runner": "command", "options": {"argv": ["echo", "by the api"]}}
    with up(cli) as (process, client):
        client.put("/v1/task-definitions/feed", json=other)
        (cli.folder / "definitions" / "x.yaml").write_text("name: x\nrunner: command\n")
        while logged(process, "definition.applied")["definition"] != "x":
            pass
        assert version_of(client) == (2, ["by the api"])
    with up(cli) as (process, client):
        assert "(1 kept as changed through the API)" in screen(process)
        assert version_of(client) == (2, ["by the api"])
        feed(cli, "another")
        assert logged(process, "definition.applied")["version"] == 3
        (cli.folder / "definitions" / "feed.json").unlink()
        assert logged(process, "definition.file_removed")["definition"] == "feed"
        assert version_of(client) == (3, ["another"])


def test_two_processes_that_watch_one_folder_store_a_change_once(cli: Cli) -> None:
    quick(cli)
    feed(cli, "one")
    with up(cli) as (first, client), up(cli) as (second, _):
        feed(cli, "another")
        beside = cli.folder / "definitions" / "beside.yaml"
        beside.write_text("name: 7\n")
        for process in (first, second):
            logged(process, "definition_file.broken")
        beside.unlink()
        for process in (first, second):
            # By now each process has handled the change.
            logged(process, "definition_file.fixed")
        assert version_of(client) == (2, ["another"])


def test_no_files_are_read_if_the_setting_disables_it(cli: Cli) -> None:
    feed(cli, "one")
    (cli.folder / "longshore.toml").write_text('[definitions]\nfolder = "none"\n')
    with up(cli) as (process, client):
        assert "definitions  not read from files" in screen(process)
        assert client.get("/v1/task-definitions").json() == {"definitions": []}
