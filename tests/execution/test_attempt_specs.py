"""How a child gets its order: whole, however long, and nothing of others with it."""

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Isolation, ResourceLimits, RunnerKind
from longshore.core.ids import traceparent_of
from longshore.errors import BackendUnavailable
from longshore.execution.host.launcher import ProcessRunner
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    NEVER_NS,
    a_call,
    a_command,
    a_script,
    output_text,
    run_attempt,
    scenario,
    wait_until,
)
from tests.execution.process_tree import idle_child, reapers_of
from tests.interfaces.command_line import is_alive

# Many times what a pipe holds.
LONG = "long " * 600_000
LONG_GRACE = timedelta(seconds=20)


@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_an_order_of_any_length_arrives_whole(
    runner: ProcessRunner, isolation: Isolation
) -> None:
    definition = {"isolation": isolation}
    long, short = await asyncio.gather(
        run_attempt(runner, a_call("length", LONG, task_id="job-a_a", definition=definition)),
        run_attempt(runner, a_call("length", "short", task_id="job-a_b", definition=definition)),
    )

    assert (long[0].result, short[0].result) == (len(LONG), len("short"))


@scenario
async def test_a_command_finds_a_long_input_in_its_file(runner: ProcessRunner) -> None:
    ending, reports = await run_attempt(
        runner, a_script("wc -c < $LONGSHORE_ATTEMPT_INPUT", input={"text": LONG})
    )

    assert ending.failure is None
    assert int(output_text(reports)) > len(LONG)


@scenario
async def test_a_command_finds_feedback_and_its_previous_output_in_files(
    runner: ProcessRunner,
) -> None:
    script = "cat $LONGSHORE_ATTEMPT_FEEDBACK; echo; cat $LONGSHORE_ATTEMPT_PREVIOUS_OUTPUT"
    revised = {"feedback": "kürzer,\nplease", "previous_output": {"text": LONG}, "revision": 1}
    _, reports = await run_attempt(runner, a_script(script, **revised))

    feedback, output = output_text(reports).rsplit("\n", 1)
    assert feedback == "kürzer,\nplease"
    assert json.loads(output) == {"text": LONG}


@scenario
async def test_a_command_that_is_not_revised_has_no_files_of_a_review(
    runner: ProcessRunner,
) -> None:
    script = "ls; env | grep -c -e FEEDBACK -e PREVIOUS"
    _, reports = await run_attempt(runner, a_script(script))

    assert output_text(reports).split() == ["dependencies.json", "input.json", "0"]


@scenario
async def test_attempts_of_different_tenants_have_different_copies_of_repositories(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    definition = {"runner": RunnerKind.AGENT}
    specs = [
        a_script("", definition=definition, tenant=tenant) for tenant in ("acme", "acme", "globex")
    ]
    folders = {
        runner._encode(spec, tmp_path, secrets={}, user=None)["agent"]["repositories"]
        for spec in specs
    }

    assert len(folders) == 2


@scenario
async def test_a_limit_on_files_does_not_cut_the_order(runner: ProcessRunner) -> None:
    definition = {"isolation": Isolation.SPAWN, "resources": ResourceLimits(file_bytes=1000)}

    ending, _ = await run_attempt(runner, a_call("length", LONG, definition=definition))

    assert ending.result == len(LONG)


@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_each_attempt_has_a_trace_context_of_its_own(
    runner: ProcessRunner, isolation: Isolation
) -> None:
    definition = {"isolation": isolation}
    ids = [("job-a_a", 1), ("job-a_a", 2), ("job-a_b", 1)]
    contexts = []
    for task_id, attempt in ids:
        fields = {"definition": definition, "task_id": task_id, "attempt": attempt}
        _, reports = await run_attempt(runner, a_script("echo $TRACEPARENT", **fields))
        contexts.append(output_text(reports).strip())

    assert contexts == [traceparent_of("job-a", task, attempt) for task, attempt in ids]


@scenario
async def test_a_child_finds_nothing_that_a_loaded_module_has_set_up(tmp_path: Path) -> None:
    runner = ProcessRunner(
        tmp_path,
        {"PATH": "/usr/bin:/bin"},
        SystemClock(),
        modules=("tests.execution.module_with_side_effects",),
    )
    _, of_a_command = await run_attempt(runner, a_command("env"))
    ending, of_a_function = await run_attempt(runner, a_call("sees", ""))
    async with running_attempt(runner, a_call("waits")) as attempt:
        await anext(attempt.reports())
        ended_by = await attempt.stop(grace=LONG_GRACE)
    await runner.close()

    match = {line.partition("=")[0]: line for line in output_text(of_a_command).splitlines()}
    assert match["PATH"] == "PATH=/usr/bin:/bin"
    for names in (set(match), set(ending.result["environment"])):
        others = {name for name in names if not name.startswith("LONGSHORE_ATTEMPT")}
        assert others == {"PATH", "PWD", "TRACEPARENT"}
    assert output_text(of_a_function) == ""
    assert ended_by == "SIGTERM"


async def untaken_attempt(runner: ProcessRunner, work: Path) -> tuple[asyncio.Future[object], int]:
    """A start that waits for the only child, which is stopped."""
    await run_attempt(runner, a_command("true"))
    await wait_until(lambda: idle_child(runner))
    child = idle_child(runner)
    assert child
    os.kill(child, signal.SIGSTOP)
    spec = a_call("length", LONG, task_id="job-a_b")
    starting = asyncio.ensure_future(runner.start(spec, deadline_ns=NEVER_NS))
    await wait_until(lambda: (work / "job-a_b.1").exists())
    return starting, child


@scenario
async def test_an_attempt_that_no_child_has_taken_is_not_started_when_the_fork_server_dies(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    starting, child = await untaken_attempt(runner, tmp_path / "work")
    os.kill(runner.forkserver.process_id or 0, signal.SIGKILL)

    with pytest.raises(BackendUnavailable):
        await starting
    assert not (tmp_path / "work" / "job-a_b.1").exists()
    await wait_until(lambda: not is_alive(child))


@scenario
async def test_an_attempt_whose_child_has_ended_before_it_took_it_is_not_started(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    starting, child = await untaken_attempt(runner, tmp_path / "work")
    os.kill(child, signal.SIGKILL)

    with pytest.raises(BackendUnavailable):
        await starting
    # The next child ignores what was meant for the one before.
    ending, _ = await run_attempt(runner, a_call("add", 1, 2))
    assert ending.result == 3


@scenario
async def test_a_start_that_is_cancelled_before_it_is_taken_leaves_nothing(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    starting, child = await untaken_attempt(runner, tmp_path / "work")

    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    assert starting.cancelled()
    assert not (tmp_path / "work" / "job-a_b.1").exists()
    await wait_until(lambda: not is_alive(child))
    # The reaper ends with the attempt that was abandoned.
    await wait_until(lambda: not reapers_of(runner))
    ending, _ = await run_attempt(runner, a_command("true"))
    assert ending.failure is None
