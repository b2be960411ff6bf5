"""The commands that explain and change jobs and tasks: ``why``, ``cancel`` and others."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult
from tests.interfaces.conftest import At

Inside = Callable[..., CommandResult]
REVIEWED = {
    "name": "draft",
    "runner": "command",
    "requiresReview": True,
    "options": {"argv": ["echo", "draft"]},
}


def _task(key: str, *parents: str, argv: tuple[str, ...] = ("true",), **fields: Any) -> Any:
    task: dict[str, Any] = {"taskId": key, "name": "command", "input": {"argv": list(argv)}}
    if parents:
        task["dependsOn"] = list(parents)
    return {**task, **fields}


@pytest.fixture
def ask(cli: Cli, inside: Inside, at: At) -> Inside:
    """A command, on the data folder of the test."""
    folder = cli.folder / ".longshore"
    return lambda *arguments, **named: inside(*arguments, *at(folder), **named)


@pytest.fixture
def submit(cli: Cli, ask: Inside) -> Callable[..., str]:
    def run(*tasks: Any, **more: Any) -> str:
        file = cli.folder / "job.json"
        file.write_text(json.dumps({"tasks": list(tasks), **more}))
        return str(ask("submit", str(file), "-o", "json").json["jobId"])

    return run


def test_why_shows_the_chain_down_to_the_root_cause_and_the_remedy(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit(_task("a", argv=("false",)), _task("b", "a"), _task("c", "b"))
    assert cli("worker", "--burst").code == 0

    shown = ask("why", f"{job_id}_c").out
    reasons = ask("why", f"{job_id}_c", "-o", "json").json["reasons"]

    lines = shown.splitlines()
    assert "'c' waits for 'b'" in lines[0]
    assert re.search(r"\. \(for [\d.]+ m?s\)$", lines[0])
    assert "list the exit code in `retryableExitCodes`" in lines[-1]
    assert shown.count("→ longshore resume") == 1
    assert reasons[-1]["requestId"] == f"{job_id}_a"
    assert reasons[-1]["remedy"] == f"longshore resume {job_id}"


def test_why_says_that_a_due_task_waits_for_a_worker(
    ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit(_task("a"))

    assert "→ longshore worker" in ask("why", job_id[:12]).out


def test_a_job_is_cancelled_and_resumed(cli: Cli, ask: Inside, submit: Callable[..., str]) -> None:
    job_id = submit(_task("a"), _task("b", "a"))

    cancelled = ask("cancel", job_id, "--reason", "wrong day")
    again = ask("cancel", job_id)
    resumed = ask("resume", job_id)

    assert cancelled.out == f"{job_id} is cancelled\n"
    assert (again.code, resumed.code) == (4, 0)
    assert resumed.out == f"{job_id}: 2 tasks resumed, round 2\n"
    assert cli("worker", "--burst").code == 0
    nothing = ask("resume", job_id)
    assert (nothing.code, "nothing to resume: no task failed" in nothing.err) == (4, True)


def test_ended_jobs_are_counted_and_removed(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    ended = submit(_task("a"))
    assert cli("worker", "--burst").code == 0
    waiting = submit(_task("a"))

    counted = ask("prune", "--older-than", "0s", "--dry-run")
    young = ask("prune", "--older-than", "30d")
    removed = ask("prune", "--older-than", "0s")
    again = ask("prune", "--older-than", "0s", "-o", "json")

    assert counted.out == "1 job would be removed\n"
    assert young.out == "0 jobs removed\n"
    assert removed.out == "1 job removed\n"
    assert again.json == {"jobs": 0, "more": False}
    assert (ask("job", ended).code, ask("job", waiting).code) == (3, 0)
    assert ask("prune", "--older-than", "soon").code == 2


def test_one_task_is_cancelled(ask: Inside, submit: Callable[..., str]) -> None:
    job_id = submit(_task("a"), _task("b"))

    answer = ask("cancel", f"{job_id}_a", "-o", "json")

    assert (answer.json["taskId"], answer.json["status"]) == ("a", "cancelled")
    assert ask("tasks", "--job", job_id, "-o", "json").code == 0


def test_a_result_is_revised_and_then_approved(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit({"taskId": "a", "name": "draft"}, definitions=[REVIEWED])
    assert cli("worker", "--burst").code == 0
    assert "longshore approve" in ask("why", f"{job_id}_a").out

    revised = ask("revise", f"{job_id}_a", "half as long")
    early = ask("approve", f"{job_id}_a")
    assert cli("worker", "--burst").code == 0
    approved = ask("approve", f"{job_id}_a")

    assert revised.out == f"{job_id}_a runs again, revision 1\n"
    assert early.code == 4
    assert approved.out == f"{job_id}_a is completed\n"
    whole_job = ask("approve", job_id)
    assert (whole_job.code, "is a job" in whole_job.err) == (2, True)


def test_tasks_are_added_once(cli: Cli, ask: Inside, submit: Callable[..., str]) -> None:
    job_id = submit(_task("a"))
    file = cli.folder / "more.json"
    file.write_text(json.dumps({"tasks": [_task("b", "a")]}))

    first = ask("add", job_id, str(file), "--request-id", "part-2")
    second = ask("add", job_id, str(file), "--request-id", "part-2")
    wrong = ask("add", job_id, str(file))

    assert first.out == f"{job_id}: 1 task added, 2 in total\n"
    assert "(already added by this request)" in second.out
    assert wrong.code == 2
    assert "tasks[0].taskId: 'b' is already the id of a task of this job" in wrong.err
    assert cli("worker", "--burst").code == 0
    assert cli.only_job_state().value == "completed"


def test_a_queue_is_paused_shown_and_resumed(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit(_task("a"))

    paused = ask("queues", "pause", "default", "--reason", "the server is down")
    why = ask("why", f"{job_id}_a").out
    assert cli("worker", "--burst").code == 0
    listed = ask("queues", "list", "-o", "json").json["paused"]
    assert cli.only_job_state().value == "running"
    resumed = ask("queues", "resume", "default")
    again = ask("queues", "resume", "default")

    assert "Queue 'default' is paused by" in paused.out
    assert "the server is down" in why
    assert "longshore queues resume default" in why
    assert [(queue["name"], queue["reason"]) for queue in listed] == [
        ("default", "the server is down")
    ]
    assert (resumed.out, again.code) == ("Queue 'default' resumed\n", 4)
    assert cli("worker", "--burst").code == 0
    assert cli.only_job_state().value == "completed"


def test_a_held_queue_is_shown_with_its_end_and_resumed(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit(_task("a"))
    asyncio.run(_hold(cli.folder / ".longshore"))
    assert ask("queues", "pause", "mail").code == 0

    listed = ask("queues", "list").out.splitlines()
    why = ask("why", f"{job_id}_a").out
    resumed = ask("queues", "resume", "default")

    assert listed[0].split() == ["QUEUE", "PAUSED", "BY", "FOR", "ENDS", "REASON"]
    assert "worker-1" in listed[1]
    assert " in 30 min" in listed[1]
    assert listed[1].endswith("rate limit")
    assert "when resumed" in listed[2]
    assert "Queue 'default' is held until" in why
    assert "longshore queues resume default" in why
    assert resumed.out == "Queue 'default' resumed\n"


async def _hold(folder: Path) -> None:
    clock = SystemClock()
    async with sqlite_backend(folder, clock) as backend:
        now = clock.now()
        until = now + timedelta(minutes=30, seconds=30)
        await backend.queue_controls.hold(
            "default", until=until, by="worker-1", reason="rate limit", now=now
        )


def test_run_warns_if_its_queue_is_paused(cli: Cli) -> None:
    assert cli("queues", "pause", "mail", "--reason", "the server is down").code == 0

    with cli.start("run", "--queue", "mail", "--", "echo", "sent") as waiting:
        assert waiting.stderr is not None
        warning = waiting.stderr.readline()
        resumed = cli("queues", "resume", "mail")
        out, _ = waiting.communicate(timeout=TIMEOUT_S)

    assert "queue 'mail' is paused by" in warning
    assert "(the server is down); to resume it: `longshore queues resume mail`" in warning
    assert resumed.code == 0
    assert (waiting.returncode, out) == (0, "sent\n")


def test_health_checks_all_running_tasks_or_one(
    cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    gate = cli.make_fifo("gate")
    job_id = submit(_task("a", argv=("cat", str(gate))))

    before = ask("health", f"{job_id}_a")
    with cli.start("worker", "--burst") as worker:
        with gate.open("w"):  # opens when the task reads it, and so runs
            every = ask("health", "-o", "json")
            single = ask("health", f"{job_id}_a")
            table = ask("health")
        assert worker.wait(TIMEOUT_S) == 0
    after = ask("health")

    assert (before.code, after.err) == (0, "no task is running\n")
    assert "health applies to running tasks only" in before.out
    assert every.json["summary"]["healthy"] == 1
    assert [task["requestId"] for task in every.json["tasks"]] == [f"{job_id}_a"]
    assert (single.code, table.code) == (0, 0)
    assert "healthy" in single.out
    assert f"{job_id}_a" in table.out
