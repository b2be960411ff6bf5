"""What a child tells while it runs reaches readers of the output, heartbeats and the history."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.types import Activity, Usage
from longshore.core.failures import ErrorCategory, Failure
from longshore.core.states import TaskState
from longshore.ports.output import Stream
from longshore.ports.runner import Active, Ending, Progressed, Summarised, Used
from longshore.testing.runner import Script, prints
from tests.unit.services.samples import MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)


async def lines(stage: Stage) -> list[tuple[Stream, bytes]]:
    entries = await stage.backend.output.read(task_id("a"))
    return [(entry.stream, entry.data) for entry in entries]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_progress_and_summaries_are_lines_of_output_while_the_child_runs(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        says = [prints("x"), Progressed(1, 3, "pages"), Summarised("all fine"), MINUTE]
        stage.runner.plays("a", Script(says=says))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            running, seen = stage.runner.alive, await lines(stage)

        assert running == ["a"]
        assert seen == [
            (Stream.STDOUT, b"x"),
            (Stream.LOG, b"progress: 1 of 3 (33%), pages\n"),
            (Stream.LOG, b"summary: all fine\n"),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("said", "activity", "text"),
    [
        (Progressed(2, 3, "pages"), "progress", "2 of 3 (66%), pages"),
        (Summarised("all fine"), "summary", "all fine"),
        (Summarised("x" * 500), "summary", "x" * 200),
    ],
    ids=["progress", "summary", "long"],
)
@scenario
async def test_a_heartbeat_tells_what_was_last_said(
    kind: str, said: Any, activity: str, text: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        began = stage.clock.now()
        step = Activity(type="step_running", step_name="one")
        stage.runner.plays("a", Script(says=[Active(step), SECOND, said, MINUTE]))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(seconds=21))

        beat = next(e for e in await stage.history("a") if e.type == "Task Heartbeat")
        last = beat.body.last_activity
        assert (last.type, last.step_name) == (activity, text)
        assert last.timestamp == began + SECOND


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progressed(3), "3"),
        (Progressed(0, 0), "0 of 0"),
        (Progressed(3, None, "pages"), "3, pages"),
        (Progressed(3, 10), "3 of 10 (30%)"),
        (Progressed(1999, 2000), "1999 of 2000 (99%)"),
        (Progressed(2000, 2000), "2000 of 2000 (100%)"),
        (Progressed(12, 10), "12 of 10"),
        (Progressed(0.5, 1.25, "GB"), "0.5 of 1.25 (40%), GB"),
        (Progressed(12345678.0, 2.0**53), "12345678 of 9007199254740992 (0%)"),
    ],
)
def test_progress_reads_like_a_sentence(progress: Progressed, text: str) -> None:
    assert str(progress) == text


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_a_given_back_attempt_has_used_is_not_forgotten(
    kind: str, tmp_path: Path
) -> None:
    usage = Usage(input_tokens=7, cost_usd=0.5)
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[Used(usage)], ending=None))
        await stage.submit(a_task())

        async with stage.working() as worker:
            await stage.passes(NO_WAIT)
            worker.stop()
            worker.end_all()
            await stage.passes(NO_WAIT)

        row = await stage.task("a")
        assert (row.state, row.usage) == (TaskState.PENDING, usage)
        assert (await stage.history("a"))[-1].body.usage == usage


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("category", "peak"),
    [
        (ErrorCategory.CRASH, 123),
        (ErrorCategory.OUT_OF_MEMORY, 123),
        (ErrorCategory.VALIDATION, None),
    ],
)
@scenario
async def test_how_much_memory_it_had_is_told_of_a_child_that_died(
    kind: str, category: ErrorCategory, peak: int | None, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        failure = Failure(category=category, message="gone")
        stage.runner.plays("a", Script(ending=Ending(failure=failure, peak_rss_bytes=123)))
        await stage.submit(a_task(maxAttempts=1))

        async with stage.working():
            await stage.passes(SECOND)

        assert (await stage.history("a"))[-1].body.peak_rss_bytes == peak
