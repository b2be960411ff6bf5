"""``longshore jobs``, ``job``, ``tasks``, ``events`` and ``logs``."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.core.events.codec import EVENT_SIZE_LIMIT_BYTES
from longshore.errors import UsageError
from longshore.interfaces.cli.client import ApiClient, EntityRef
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import screen
from longshore.services.documents import IdList
from longshore.settings import load_settings
from longshore.wiring.services import open_services
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult
from tests.interfaces.conftest import At

Inside = Callable[..., CommandResult]
REPORT = {
    "name": "report",
    "tasks": [
        {
            "taskId": "fetch",
            "name": "command",
            "input": {"argv": ["sh", "-c", "echo one; echo two >&2; printf three"]},
        },
        {
            "taskId": "merge",
            "name": "command",
            "dependsOn": ["fetch"],
            "input": {"argv": ["sh", "-c", "echo merging; exit 9"]},
        },
        {"taskId": "send", "name": "command", "dependsOn": ["merge"], "input": {"argv": ["true"]}},
    ],
}
RETRIED = "test -e again && exec echo second; touch again; echo first; kill -9 $$"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a failed job, a job with two attempts, and a completed job."""
    cli = Cli(tmp_path_factory.mktemp("store"))
    cli("submit", "-", "--request-id", "report", "--wait", stdin=json.dumps(REPORT))
    retried = ("--request-id", "retried", "--name", "retried", "--attempts", "2")
    cli("run", *retried, "--", "sh", "-c", RETRIED)
    cli("run", "--request-id", "last", "--name", "last", "--", "echo", "[bold]done[/bold]")
    return cli.folder / ".longshore"


@pytest.fixture
def ask(store: Path, inside: Inside, at: At) -> Inside:
    return lambda *arguments: inside(*arguments, *at(store))


def _id_of(ask: Inside, name: str) -> str:
    jobs = ask("jobs", "-o", "json").json["jobs"]
    return next(job["jobId"] for job in jobs if job["name"] == name)


def test_jobs_are_listed_newest_first_in_aligned_columns(ask: Inside) -> None:
    answer = ask("jobs")

    head, *rows = answer.out.splitlines()
    states = [row[head.index("STATE") :].split()[0] for row in rows]
    assert [row[head.index("NAME") :].split()[0] for row in rows] == ["last", "retried", "report"]
    assert states == ["completed", "completed", "failed"]
    assert all(re.match(r"job-[0-9a-v]{24}  ", row) for row in rows)
    assert all(line == line.rstrip() for line in answer.out.splitlines())
    assert "\x1b" not in answer.out


def test_jobs_as_json_have_their_exit_codes(ask: Inside) -> None:
    answer = ask("jobs", "-o", "json")

    jobs = {job["name"]: job for job in answer.json["jobs"]}
    assert {name: job["exitCode"] for name, job in jobs.items()} == {
        "last": 0,
        "retried": 0,
        "report": 1,
    }
    assert jobs["report"]["progress"] == {
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
        "blocked": 1,
        "open": 0,
    }
    assert jobs["report"]["requestId"] == "report"


def test_jobs_are_filtered_by_state(ask: Inside) -> None:
    answer = ask("jobs", "--state", "failed", "-o", "json")

    assert [job["name"] for job in answer.json["jobs"]] == ["report"]


def test_following_the_cursor_lists_every_job_once(ask: Inside) -> None:
    names, cursor = [], None
    while cursor is not None or not names:
        more = ("--cursor", cursor) if cursor else ()
        page = ask("jobs", "--limit", "2", "-o", "json", *more).json
        names += [job["name"] for job in page["jobs"]]
        cursor = page["cursor"]

    assert names == ["last", "retried", "report"]
    cursor = ask("jobs", "--limit", "2", "-o", "json").json["cursor"]
    assert f"more results: --cursor {cursor}\n" in ask("jobs", "--limit", "2").err


def test_a_job_is_shown_with_each_of_its_tasks(ask: Inside) -> None:
    answer = ask("job", _id_of(ask, "report"))

    assert "1 waiting, 1 completed, 1 failed of 3 tasks" in answer.out
    rows = {line.split()[0]: line for line in answer.out.partition("TASK ")[2].splitlines()[1:]}
    assert "the process ended with exit code 9" in rows["merge"]
    assert re.search(r"completed\s+1/3\s+0\s", rows["fetch"])
    assert "waiting" in rows["send"]


def test_a_job_as_json_has_the_last_event_and_the_error_of_each_task(ask: Inside) -> None:
    job = ask("job", _id_of(ask, "report"), "-o", "json").json

    tasks = {task["taskId"]: task for task in job["tasks"]}
    assert (job["status"], job["states"]["failed"]) == ("failed", 1)
    assert tasks["merge"]["lastEvent"]["type"] == "Task Failed"
    assert tasks["merge"]["error"]["category"] == "exit-code"
    assert (tasks["merge"]["exitCode"], tasks["fetch"]["exitCode"]) == (9, 0)
    assert tasks["fetch"]["startedAt"] <= tasks["merge"]["startedAt"]


def test_a_job_is_named_by_a_unique_prefix_of_its_id(ask: Inside) -> None:
    whole = _id_of(ask, "report")

    ids = [ask("job", text, "-o", "json").json["jobId"] for text in (whole[:14], whole[4:14])]

    assert ids == [whole, whole]


def test_the_error_for_an_ambiguous_id_lists_the_candidates(ask: Inside) -> None:
    answer = ask("job", "job-")

    assert answer.code == ExitCode.USAGE
    assert answer.err.count("job-") >= 3 + 1


@pytest.mark.parametrize("name", ["job", "events", "logs"])
def test_the_error_for_an_unknown_id_names_a_listing(ask: Inside, name: str) -> None:
    answer = ask(name, "job-000")

    assert answer.code == ExitCode.NOT_FOUND
    assert "longshore jobs" in answer.err


def test_another_tenant_sees_nothing(store: Path, inside: Inside) -> None:
    def ask(*arguments: str) -> CommandResult:
        return inside(*arguments, "--data-dir", str(store))

    whole = _id_of(ask, "report")

    assert ask("jobs", "--tenant", "other", "-o", "json").json["jobs"] == []
    assert ask("job", whole, "--tenant", "other").code == ExitCode.NOT_FOUND


def test_tasks_of_one_job_come_in_its_order(ask: Inside) -> None:
    answer = ask("tasks", "--job", _id_of(ask, "report"), "-o", "json")

    assert [task["taskId"] for task in answer.json["tasks"]] == ["fetch", "merge", "send"]


def test_tasks_are_filtered_by_state(ask: Inside) -> None:
    answer = ask("tasks", "--state", "failed")

    assert len(answer.out.splitlines()) == 2
    assert "_merge" in answer.out


def test_text_of_tasks_is_not_read_as_markup(ask: Inside) -> None:
    assert ask("logs", _id_of(ask, "last")).out == "run | [bold]done[/bold]\n"


def test_events_as_json_are_complete_and_without_gaps(ask: Inside) -> None:
    events = ask("events", f"{_id_of(ask, 'report')}_merge", "-o", "json").json

    assert [event["sequence"] for event in events] == [1, 2, 3]
    assert [event["eventType"] for event in events] == [
        "Task Pending",
        "Task Processing Started",
        "Task Failed",
    ]
    assert {"PK", "SK", "GSI1PK", "tenantId", "timestamp", "context"} <= set(events[0])
    assert events[2]["properties"]["exitCode"] == 9


def test_all_events_of_a_job_are_those_of_the_job_and_its_tasks(ask: Inside) -> None:
    job_id = _id_of(ask, "report")

    own = ask("events", job_id, "-o", "json").json
    everything = ask("events", job_id, "--all", "-o", "json").json

    assert {event["entityType"] for event in own} == {"JOB"}
    assert {event["entityId"].partition("_")[2] for event in everything} == {"", "fetch", "merge"}
    assert [event for event in everything if event["entityType"] == "JOB"] == own


def test_events_are_printed_one_per_line(ask: Inside) -> None:
    answer = ask("events", _id_of(ask, "report"), "--all")

    head, *lines = answer.out.splitlines()
    assert head.split() == ["TIME", "SEQ", "TASK", "EVENT", "DETAILS"]
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} +\d+  ", line) for line in lines)
    assert lines[-1].endswith("merge failed")


def test_a_large_event_is_shown_with_its_spilled_properties(cli: Cli, inside: Inside) -> None:
    tasks = [
        {"taskId": f"a-task-with-quite-a-long-name-{number}", "name": "command", "delay": 86400}
        for number in range(4000)
    ]
    (cli.folder / "large.json").write_text(json.dumps({"tasks": tasks}))
    data_dir = ("--data-dir", str(cli.folder / ".longshore"))
    accepted = inside("submit", str(cli.folder / "large.json"), "-o", "json", *data_dir).json

    (created,) = inside("events", accepted["jobId"], "-o", "json", *data_dir).json

    compact = json.dumps(created["properties"], separators=(",", ":"))
    assert len(compact) > EVENT_SIZE_LIMIT_BYTES
    assert len(created["properties"]["tasks"]) == 4000
    assert "_s3Overflow" not in created["properties"]


def test_the_logs_of_a_task_keep_stdout_and_stderr_apart(ask: Inside) -> None:
    answer = ask("logs", f"{_id_of(ask, 'report')}_fetch")

    assert (answer.out, answer.err) == ("one\nthree", "two\n")


def test_the_logs_of_a_job_name_the_task_and_the_stream(ask: Inside) -> None:
    answer = ask("logs", _id_of(ask, "report"))

    assert sorted(answer.out.splitlines()[:2]) == ["fetch ! two", "fetch | one"]
    assert sorted(answer.out.splitlines()[2:]) == ["fetch | three", "merge | merging"]


def test_logs_of_one_attempt(ask: Inside) -> None:
    task_id = f"{_id_of(ask, 'retried')}_run"

    assert ask("logs", task_id, "--attempt", "1").out == "first\n"
    assert ask("logs", task_id, "--attempt", "2").out == "second\n"
    both = ask("logs", task_id)
    assert (both.out, both.err) == ("first\nsecond\n", "longshore: attempt 2\n")
    assert ask("logs", task_id, "--attempt", "3").err == "no output in attempt 3\n"


def test_logs_as_json_have_attempt_and_sequence(ask: Inside) -> None:
    chunks = ask("logs", _id_of(ask, "retried"), "-o", "json").json

    assert [(chunk["attempt"], chunk["sequence"], chunk["text"]) for chunk in chunks] == [
        (1, 1, "first\n"),
        (2, 1, "second\n"),
    ]


@pytest.mark.parametrize("command", [("logs",), ("events", "--all")])
def test_following_stops_when_the_job_has_ended(cli: Cli, command: tuple[str, ...]) -> None:
    gate = cli.make_fifo("gate")
    script = f"echo begun; read line < {gate}; echo $line"
    with cli.start("run", "--request-id", "r", "--", "sh", "-c", script) as run:
        run.stdout.readline()
        with cli.start(*command, "job-", "-f") as follow:
            seen = ""
            while "begun" not in seen and "Started" not in seen:
                seen += follow.stdout.readline()
            gate.write_text("ended\n")
            rest, _ = follow.communicate(timeout=TIMEOUT_S)

    assert follow.returncode == 0
    assert rest.splitlines()[-1].split("  ")[-1] in ("run | ended", "1 task")


def test_a_terminal_gets_colours_unless_no_color_is_set(store: Path) -> None:
    cli = Cli(store.parent)
    with cli.terminal("jobs") as coloured, cli.terminal("jobs", env={"NO_COLOR": "1"}) as plain:
        assert (coloured.wait(), plain.wait()) == (0, 0)

    assert re.search(r"\x1b\[[\d;]*31m", coloured.shown)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain.shown)
    assert "completed" in plain.text


BIG, SMALL = f"job-{'a' * 24}", f"job-{'a' * 23}b"


def _find_job(text: str, *ids: str) -> EntityRef:
    async def find_ids(prefix: str, *, limit: int) -> IdList:
        return IdList(ids=[id_ for id_ in sorted(ids) if id_.startswith(prefix)][:limit])

    app: Any = SimpleNamespace(find_ids=find_ids)
    client = ApiClient(GlobalOptions(), app, "here", lambda: datetime(2030, 1, 31, tzinfo=UTC))
    return asyncio.run(client.resolve(text))


def test_a_prefix_is_ambiguous_even_if_one_job_has_very_many_tasks() -> None:
    ids = (BIG, SMALL, *(f"{BIG}_t{number}" for number in range(300)))

    with pytest.raises(UsageError, match=SMALL):
        _find_job("job-aa", *ids)
    assert _find_job(SMALL, *ids) == EntityRef(SMALL)
    assert _find_job(BIG, *ids) == EntityRef(BIG)


def test_a_task_is_named_by_prefixes_of_its_job_and_its_key() -> None:
    ids = (BIG, f"{BIG}_fetch", f"{BIG}_fetch-all", f"{BIG}_send")

    assert _find_job("job-a_s", *ids) == EntityRef(BIG, f"{BIG}_send")
    assert _find_job("a_fetch", *ids) == EntityRef(BIG, f"{BIG}_fetch")
    with pytest.raises(UsageError, match="fetch-all"):
        _find_job("a_fet", *ids)


@pytest.mark.parametrize("command", ["jobs", "logs", "why", "dead list", "aws deploy"])
def test_the_help_of_a_command_imports_neither_settings_nor_storage(command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "longshore", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    packages = {name.partition(".")[0] for name in imported}
    assert "longshore.interfaces.cli.options" in imported
    assert packages & {"rich", "msgspec", "apsw", "httpx2", "yaml"} == set()
    assert imported & {"longshore.settings", "longshore.services.documents"} == set()


# A title and the clipboard (OSC), the screen and the cursor (CSI), C1, a device string, BEL.
HOSTILE = (
    b"\x1b[31mred\x1b[0m\x1b]0;title\a\x1b]52;c;Zm9v\x1b\\\x1b[2J\x1b[1;1H\xc2\x9b1A\xc2\x9d2;x\xc2\x9c"
    b"\x1bP+q\x1b\\\x1bc\x1b(0\a\b\0\tover\rwritten\x1b[8"
)
CLEAN = b"\x1b[31mred\x1b[0m\tover\r\nwritten"


def test_a_terminal_gets_only_colours_of_a_task(cli: Cli) -> None:
    (cli.folder / "hostile").write_bytes(HOSTILE)
    cli("run", "--", "cat", str(cli.folder / "hostile"))
    task = f"{json.loads(cli('jobs', '-o', 'json').out)['jobs'][0]['jobId']}_run"
    with cli.terminal("logs", task) as of_task, cli.terminal("logs", "job-") as of_job:
        assert (of_task.wait(), of_job.wait()) == (0, 0)
    with cli.start("logs", task) as piped:
        raw = piped.stdout.buffer.read()  # type: ignore[union-attr]

    assert of_task.shown.encode() == CLEAN
    assert CLEAN in of_job.shown.encode()
    assert "\x1b]" not in of_job.shown
    assert raw == HOSTILE


def test_a_control_sequence_in_two_writes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, terminal = os.openpty()
    with open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        screen.filter_terminals()
        for byte in HOSTILE:
            sys.stdout.buffer.write(bytes([byte]))
            sys.stdout.buffer.flush()
        shown = b""
        while b"written" not in shown:
            shown += os.read(reader, 1000)
    os.close(reader)

    assert shown.startswith(b"\x1b[31mred\x1b[0m]0;title")  # its end was not known at its start
    assert re.findall(rb"[\x00-\x1f\x7f]", shown) == re.findall(rb"[\x00-\x1f\x7f]", CLEAN)


def test_a_terminal_gets_no_control_sequences_of_stored_texts(cli: Cli) -> None:
    async def pause() -> None:
        settings = load_settings({"data_dir": cli.folder / ".longshore"}, environ={})
        async with open_services(settings) as services:
            # An older version took such a reason.
            reason = "\x1b]0;t\x07\x9b2Jdown"
            controls = services.backend.queue_controls
            await controls.pause("default", by="eve", reason=reason, now=services.now())

    cli("submit", "-", stdin=json.dumps(REPORT))
    asyncio.run(pause())
    for *command, shown in (
        ("why", "job-", "down"),
        ("queues", "list", "down"),
        ("job", "\x1bc", ""),
    ):
        with cli.terminal(*command) as terminal:
            terminal.wait()
        assert not re.search(r"\x1b[^\[]|\x1b\[[\d;]*[^\d;m]|\x07|\x9b", terminal.shown)
        assert shown in terminal.shown
    assert "\x1b]0;t\x07" in cli("why", "job-").out
