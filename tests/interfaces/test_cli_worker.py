"""``longshore worker``: burst mode, and what signals do."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.output import OUTPUT_START
from longshore.services.worker.group import wait_until_idle
from longshore.settings import load_settings
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import open_services
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult, is_alive, send_signal

Inside = Callable[..., CommandResult]


@pytest.fixture
def submit(cli: Cli, inside: Inside) -> Callable[..., str]:
    """Submits tasks and returns the job's id."""

    def run(*tasks: dict[str, Any]) -> str:
        file = cli.folder / "job.json"
        file.write_text(json.dumps({"tasks": list(tasks)}))
        folder_options = ("--data-dir", str(cli.folder / ".longshore"))
        return str(inside("submit", str(file), "-o", "json", *folder_options).json["jobId"])

    return run


def _shell(key: str, script: str, **fields: Any) -> dict[str, Any]:
    return {
        "taskId": key,
        "name": "command",
        "input": {"argv": ["sh", "-c", script]},
        **fields,
    }


def _events(cli: Cli, inside: Inside, entity: str) -> list[str]:
    folder_options = ("--data-dir", str(cli.folder / ".longshore"))
    return [
        event["eventType"] for event in inside("events", entity, "-o", "json", *folder_options).json
    ]


def test_a_burst_ends_when_only_tasks_of_the_far_future_are_left(
    cli: Cli, submit: Callable[..., str]
) -> None:
    submit(_shell("a", "true"), _shell("b", "exit 1"), _shell("c", "true", dependsOn=["a"]))
    submit(_shell("later", "true", delay=86400))
    submit(_shell("elsewhere", "true", queue="other"))

    answer = cli("worker", "--burst")

    states = [job.state for job in cli.jobs()]
    assert answer.code == 0
    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.FAILED]
    assert len(cli.jobs()[-1].completed) == 2


def test_a_burst_waits_for_another_attempt(cli: Cli, submit: Callable[..., str]) -> None:
    again = cli.folder / "again"
    submit(_shell("a", f"test -e {again} && exec true; touch {again}; kill -9 $$"))

    answer = cli("worker", "--burst")

    assert answer.code == 0
    assert cli.only_job_state() is JobState.COMPLETED


def test_a_task_that_waits_for_the_dispatcher_is_not_idle(cli: Cli) -> None:
    tasks = [_shell("a", "true"), _shell("b", "true", dependsOn=["a"])]
    settings = load_settings({"data_dir": cli.folder / ".longshore"}, environ={})

    async def scenario() -> TaskState:
        async with open_services(settings) as opened:
            # Where there are messages, only the dispatcher makes dependents ready.
            services = replace(opened, backend=memory_backend(opened.backend.clock))
            submitted = await services.producer.submit("default", "request", {"tasks": tasks})
            job_id = submitted.job.id
            worker = services.worker()
            working = asyncio.ensure_future(worker.run())
            ledger, output = services.backend.ledger, services.backend.output
            while not (await ledger.get_task(f"{job_id}_a")).state.terminal:
                await output.wait_for_output(
                    f"{job_id}_a", after=OUTPUT_START, timeout=timedelta(milliseconds=20)
                )
            worker.stop()
            await working
            assert (await ledger.get_task(f"{job_id}_b")).state is TaskState.WAITING
            left = wait_until_idle(
                services.backend,
                services.source,
                services.dispatcher,
                tenant="default",
                queues=["default"],
                horizon=timedelta(0),
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(left, 0.3)
            return (await ledger.get_task(f"{job_id}_b")).state

    assert asyncio.run(scenario()) is TaskState.PENDING


def test_the_first_line_says_what_is_served(cli: Cli) -> None:
    arguments = ("--queue", "mail", "--queue", "reports", "--concurrency", "8", "--burst")

    answer = cli("worker", *arguments)

    (line,) = answer.out.splitlines()
    assert line.startswith("worker ")
    assert "serving mail, reports; 8 tasks at once" in line
    assert str(cli.folder / ".longshore") in line


def test_a_signal_lets_running_tasks_finish(
    cli: Cli, submit: Callable[..., str], inside: Inside
) -> None:
    begun, gate = cli.make_fifo("begun"), cli.make_fifo("gate")
    job_id = submit(
        _shell("first", f"echo > {begun}; read line < {gate}"),
        _shell("second", "true", dependsOn=["first"]),
    )
    with cli.start("worker") as worker:
        begun.read_text()
        send_signal(worker, signal.SIGTERM)
        while "for 1 running task" not in worker.stderr.readline():
            continue
        gate.write_text("go\n")
        code = worker.wait(TIMEOUT_S)

    assert code == 0
    assert _events(cli, inside, f"{job_id}_first")[-1] == "Task Completed"
    assert "Task Processing Started" not in _events(cli, inside, f"{job_id}_second")


def test_a_second_signal_releases_running_tasks_at_once(
    cli: Cli, submit: Callable[..., str], inside: Inside
) -> None:
    started = cli.make_fifo("started")
    job_id = submit(_shell("deaf", f"trap '' TERM; echo $$ > {started}; sleep 600"))
    with cli.start("worker") as worker:
        child = int(started.read_text())
        send_signal(worker, signal.SIGINT)
        while "for 1 running task" not in worker.stderr.readline():
            continue
        send_signal(worker, signal.SIGINT)
        code = worker.wait(TIMEOUT_S)

    assert code == 128 + signal.SIGINT
    assert not is_alive(child)
    assert _events(cli, inside, f"{job_id}_deaf") == [
        "Task Pending",
        "Task Processing Started",
        "Task Released",
    ]


def test_an_idle_worker_stops_at_once(cli: Cli) -> None:
    with cli.start("worker") as worker:
        worker.stdout.readline()
        send_signal(worker, signal.SIGTERM)
        code = worker.wait(TIMEOUT_S)

    assert code == 0
    assert list((cli.folder / ".longshore" / "workers").glob("*.lock")) == []
