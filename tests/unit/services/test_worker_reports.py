"""What a child reports while it runs reaches readers of the output, heartbeats and the history."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import TaskState
from longshore.ports.output import Stream
from longshore.ports.runner import (
    ActivityReport,
    AttemptEnding,
    ProgressReport,
    SummaryReport,
    UsageReport,
)
from longshore.testing.fake_runner import Script, prints
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.samples import MINUTE


async def lines(harness: ServiceHarness) -> list[tuple[Stream, bytes]]:
    entries = await harness.backend.output.read(task_id("a"))
    return [(entry.stream, entry.data) for entry in entries]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_progress_and_summaries_are_lines_of_output_while_the_child_runs(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        says = [prints("x"), ProgressReport(1, 3, "pages"), SummaryReport("all fine"), MINUTE]
        harness.runner.set_scripts("a", Script(reports=says))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            running, seen = harness.runner.alive, await lines(harness)

        assert running == ["a"]
        assert seen == [
            (Stream.STDOUT, b"x"),
            (Stream.LOG, b"progress: 1 of 3 (33%), pages\n"),
            (Stream.LOG, b"summary: all fine\n"),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("report", "text"),
    [
        (ProgressReport(2, 3, "pages"), "2 of 3 (66%), pages"),
        (SummaryReport("all fine"), "all fine"),
        (SummaryReport("x" * 500), "x" * 200),
    ],
    ids=["progress", "summary", "long"],
)
@scenario
async def test_a_heartbeat_contains_the_last_progress_report(
    kind: str, report: Any, text: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        began = harness.clock.now()
        step = Activity(type="step_running", step_name="one")
        harness.runner.set_scripts(
            "a", Script(reports=[ActivityReport(step), SECOND, report, MINUTE])
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=21))

        beat = next(e for e in await harness.history("a") if e.type == "Task Heartbeat")
        last = beat.body.last_activity
        assert (last.type, last.step_name) == ("step_running", text)
        assert last.timestamp == began + SECOND


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (ProgressReport(3), "3"),
        (ProgressReport(0, 0), "0 of 0"),
        (ProgressReport(3, None, "pages"), "3, pages"),
        (ProgressReport(3, 10), "3 of 10 (30%)"),
        (ProgressReport(1999, 2000), "1999 of 2000 (99%)"),
        (ProgressReport(2000, 2000), "2000 of 2000 (100%)"),
        (ProgressReport(12, 10), "12 of 10"),
        (ProgressReport(0.5, 1.25, "GB"), "0.5 of 1.25 (40%), GB"),
        (ProgressReport(12345678.0, 2.0**53), "12345678 of 9007199254740992 (0%)"),
    ],
)
def test_progress_reads_like_a_sentence(progress: ProgressReport, text: str) -> None:
    assert str(progress) == text


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_usage_of_an_attempt_that_was_given_back_is_recorded(
    kind: str, tmp_path: Path
) -> None:
    usage = Usage(input_tokens=7, cost_usd=0.5)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[UsageReport(usage)], ending=None))
        await harness.submit(make_task())

        async with harness.running_worker() as worker:
            await harness.advance(NO_WAIT)
            worker.stop()
            worker.release_all()
            await harness.advance(NO_WAIT)

        row = await harness.task("a")
        assert (row.state, row.usage) == (TaskState.PENDING, usage)
        assert (await harness.history("a"))[-1].body.usage == usage


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
async def test_the_peak_memory_of_a_dead_child_is_recorded(
    kind: str, category: ErrorCategory, peak: int | None, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        failure = Failure(category=category, message="gone")
        harness.runner.set_scripts(
            "a", Script(ending=AttemptEnding(failure=failure, peak_rss_bytes=123))
        )
        await harness.submit(make_task(maxAttempts=1))

        async with harness.running_worker():
            await harness.advance(SECOND)

        assert (await harness.history("a"))[-1].body.peak_rss_bytes == peak
