"""What a task asks of Longshore, asked in real children."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Isolation
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptSpec,
    ChildReport,
    OutputReport,
    ProgressReport,
    StepReport,
    SummaryReport,
)
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    a_call,
    a_script,
    output_text,
    reports_of,
    run_attempt,
    scenario,
)

LONG_GRACE = timedelta(seconds=20)
SHORT_GRACE = timedelta(milliseconds=200)
PROCESS_PER_ATTEMPT = [Isolation.FORK, Isolation.SPAWN]


def a_task(name: str, isolation: Isolation = Isolation.FORK, **fields: Any) -> AttemptSpec:
    function = f"tests.execution.context_functions:{name}"
    return a_call(name, input={"function": function}, definition={"isolation": isolation}, **fields)


def files_below(folder: Path | None) -> dict[str, str]:
    assert folder is not None
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for part in ("artifacts", "logs")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("isolation", PROCESS_PER_ATTEMPT)
@scenario
async def test_all_reports_of_a_task_arrive_and_its_files_stay_until_close(
    isolation: Isolation, runner: ProcessRunner
) -> None:
    async with running_attempt(runner, a_task("reports_everything", isolation)) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
        files = files_below(attempt.folder)
        await attempt.close()

        assert ending.result == "job-a_a"
        assert [item for item in reports if not isinstance(item, OutputReport)] == [
            ProgressReport(1, 2, "halves"),
            SummaryReport("one half is done"),
        ]
        assert output_text(reports, Stream.LOG) == "begin\n"
        assert files == {
            "artifacts/all/report.csv": "1,2\n",
            "artifacts/report.csv": "1,2\n",
            "logs/summary.log": "one half is done\n",
        }
        assert not attempt.folder.exists()


@scenario
async def test_a_task_that_dies_leaves_its_files_too(runner: ProcessRunner) -> None:
    async with running_attempt(runner, a_task("reports_everything_and_dies")) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
        files = files_below(attempt.folder)
        await attempt.close()

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert SummaryReport("one half is done") in reports
    assert len(files) == 3


@scenario
async def test_concurrent_async_steps_are_each_stored_and_confirmed(runner: ProcessRunner) -> None:
    stored: dict[str, Any] = {}
    spec = a_task("steps_at_once", checkpoints={"step 3": "kept before"})
    async with running_attempt(runner, spec) as attempt:
        async for report in attempt.reports():
            if isinstance(report, StepReport):
                stored[report.name] = report.result
                await attempt.confirm_step(report.name)
        ending = await attempt.ending()

    squares = [number * number for number in range(10)]
    assert ending.result == [*squares[:3], "kept before", *squares[4:], "in between"]
    assert sorted(stored) == ["plain", *(f"step {n}" for n in range(10) if n != 3)]


@pytest.mark.parametrize("isolation", PROCESS_PER_ATTEMPT)
@pytest.mark.parametrize("name", ["polls_cancelled", "polls_cancelled_async"])
@scenario
async def test_a_task_that_looks_whether_it_is_to_end_may_tidy_up_first(
    name: str, isolation: Isolation, runner: ProcessRunner
) -> None:
    got: list[ChildReport] = []
    async with running_attempt(runner, a_task(name, isolation)) as attempt:
        reports = attempt.reports()
        got.append(await anext(reports))
        stopping = asyncio.ensure_future(attempt.stop(grace=LONG_GRACE))
        async for report in reports:
            got.append(report)
            if isinstance(report, StepReport):
                await attempt.confirm_step(report.name)

        assert await stopping == "SIGTERM"
        assert output_text(got) == "ready False\ntidied up\n"
        assert (await attempt.ending()).failure is None


@pytest.mark.parametrize("isolation", PROCESS_PER_ATTEMPT)
@scenario
async def test_a_task_that_never_looks_is_ended_by_the_request_itself(
    isolation: Isolation, runner: ProcessRunner
) -> None:
    async with running_attempt(runner, a_task("never_polls_cancelled", isolation)) as attempt:
        await anext(attempt.reports())

        assert await attempt.stop(grace=LONG_GRACE) == "SIGTERM"


@scenario
async def test_a_task_that_looks_once_and_never_again_is_killed_after_the_grace(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, a_task("polls_cancelled_once")) as attempt:
        await anext(attempt.reports())

        assert await attempt.stop(grace=SHORT_GRACE) == "SIGKILL"


@scenario
async def test_a_shell_script_can_report_progress_and_a_summary(
    runner: ProcessRunner,
) -> None:
    script = """
    echo '{"type": "progress", "done": 1, "total": 4, "text": "files"}' >&$LONGSHORE_ATTEMPT_CHANNEL
    echo '{"type": "summary", "text": "all there"}' >&$LONGSHORE_ATTEMPT_CHANNEL
    """

    _, reports = await run_attempt(runner, a_script(script))

    assert reports == [ProgressReport(1, 4, "files"), SummaryReport("all there")]
