"""What a task asks of Longshore, asked in real children."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.process.runner import ProcessRunner
from longshore.core.child_limits import Isolation
from longshore.core.failures import ErrorCategory
from longshore.ports.output import Stream
from longshore.ports.runner import Printed, Progressed, Report, StepDone, Summarised, WorkOrder
from tests.adapters.process.attempts import started
from tests.adapters.process.conftest import a_call, a_script, printed, reports_of, run, scenario

PATIENT = timedelta(seconds=20)
SHORT = timedelta(milliseconds=200)
EACH_IN_ITS_PROCESS = [Isolation.FORK, Isolation.SPAWN]


def a_task(name: str, isolation: Isolation = Isolation.FORK, **fields: Any) -> WorkOrder:
    function = f"tests.adapters.process.context_children:{name}"
    return a_call(name, input={"function": function}, definition={"isolation": isolation}, **fields)


def files_below(folder: Path | None) -> dict[str, str]:
    assert folder is not None
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for part in ("artifacts", "logs")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("isolation", EACH_IN_ITS_PROCESS)
@scenario
async def test_all_that_a_task_tells_arrives_and_its_files_stay_until_they_are_let_go(
    isolation: Isolation, runner: ProcessRunner
) -> None:
    async with started(runner, a_task("tells", isolation)) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
        files = files_below(attempt.folder)
        await attempt.close()

        assert ending.result == "job-a_a"
        assert [one for one in reports if not isinstance(one, Printed)] == [
            Progressed(1, 2, "halves"),
            Summarised("one half is done"),
        ]
        assert printed(reports, Stream.LOG) == "begin\n"
        assert files == {
            "artifacts/all/report.csv": "1,2\n",
            "artifacts/report.csv": "1,2\n",
            "logs/summary.log": "one half is done\n",
        }
        assert not attempt.folder.exists()


@scenario
async def test_a_task_that_dies_leaves_its_files_too(runner: ProcessRunner) -> None:
    async with started(runner, a_task("tells_and_dies")) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
        files = files_below(attempt.folder)
        await attempt.close()

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert Summarised("one half is done") in reports
    assert len(files) == 3


@scenario
async def test_async_steps_at_once_are_each_kept_and_answered(runner: ProcessRunner) -> None:
    kept: dict[str, Any] = {}
    order = a_task("steps_at_once", checkpoints={"step 3": "kept before"})
    async with started(runner, order) as attempt:
        async for report in attempt.reports():
            if isinstance(report, StepDone):
                kept[report.name] = report.result
                await attempt.step_kept(report.name)
        ending = await attempt.ending()

    squares = [number * number for number in range(10)]
    assert ending.result == [*squares[:3], "kept before", *squares[4:], "in between"]
    assert sorted(kept) == ["plain", *(f"step {n}" for n in range(10) if n != 3)]


@pytest.mark.parametrize("isolation", EACH_IN_ITS_PROCESS)
@pytest.mark.parametrize("name", ["looks", "looks_now_and_then"])
@scenario
async def test_a_task_that_looks_whether_it_is_to_end_may_tidy_up_first(
    name: str, isolation: Isolation, runner: ProcessRunner
) -> None:
    got: list[Report] = []
    async with started(runner, a_task(name, isolation)) as attempt:
        reports = attempt.reports()
        got.append(await anext(reports))
        stopping = asyncio.ensure_future(attempt.stop(grace=PATIENT))
        async for report in reports:
            got.append(report)
            if isinstance(report, StepDone):
                await attempt.step_kept(report.name)

        assert await stopping == "SIGTERM"
        assert printed(got) == "ready False\ntidied up\n"
        assert (await attempt.ending()).exit_code == 0


@pytest.mark.parametrize("isolation", EACH_IN_ITS_PROCESS)
@scenario
async def test_a_task_that_never_looks_is_ended_by_the_request_itself(
    isolation: Isolation, runner: ProcessRunner
) -> None:
    async with started(runner, a_task("never_looks", isolation)) as attempt:
        await anext(attempt.reports())

        assert await attempt.stop(grace=PATIENT) == "SIGTERM"


@scenario
async def test_a_task_that_looks_once_and_never_again_is_killed_after_the_grace(
    runner: ProcessRunner,
) -> None:
    async with started(runner, a_task("looks_once")) as attempt:
        await anext(attempt.reports())

        assert await attempt.stop(grace=SHORT) == "SIGKILL"


@scenario
async def test_a_script_may_tell_its_progress_and_a_summary_by_hand(
    runner: ProcessRunner,
) -> None:
    script = """
    echo '{"type": "progress", "done": 1, "total": 4, "text": "files"}' >&$LONGSHORE_ATTEMPT_CHANNEL
    echo '{"type": "summary", "text": "all there"}' >&$LONGSHORE_ATTEMPT_CHANNEL
    """

    _, reports = await run(runner, a_script(script))

    assert reports == [Progressed(1, 4, "files"), Summarised("all there")]
