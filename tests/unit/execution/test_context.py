"""What a task may ask of Longshore, seen from inside, without a worker."""

import asyncio
import math
import os
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from longshore.errors import StepNameTaken
from longshore.execution.runners import channel
from longshore.execution.runners.context import LINE_LIMIT_CHARACTERS, Context, current, set_current

SPEC = {
    "task_id": "job-a_a",
    "job_id": "job-a",
    "attempt": 2,
    "dependency_outputs": {"p": 1},
    "feedback": "shorter",
    "previous_output": {"n": 1},
    "checkpoints": {"kept": [1]},
}


class RecordingSink:
    """A channel that records its messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.steps: list[tuple[str, Any]] = []

    def send(self, kind: str, **content: Any) -> None:
        self.sent.append((kind, content))

    def report_step(self, name: str, result: Any) -> None:
        self.steps.append((name, result))

    def sent_of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [content for message, content in self.sent if message == kind]


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def context(sink: RecordingSink, tmp_path: Path) -> Iterator[Context]:
    context = Context({**SPEC, "folder": str(tmp_path)}, sink)
    yield context
    context.close()


def test_the_context_has_the_fields_of_the_attempt(context: Context, tmp_path: Path) -> None:
    assert (context.task_id, context.job_id, context.attempt) == ("job-a_a", "job-a", 2)
    assert context.idempotency_key == "job-a_a"
    assert context.dependency_outputs == {"p": 1}
    assert (context.feedback, context.previous_output) == ("shorter", {"n": 1})
    assert context.folder == str(tmp_path)


def test_without_a_word_about_it_the_folder_is_where_the_attempt_began(
    sink: RecordingSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = Context(SPEC, sink)
    monkeypatch.chdir("/")

    assert context.folder == str(tmp_path)


def test_the_current_context_is_the_one_that_was_entered(context: Context) -> None:
    async def inside() -> Context:
        set_current(context)
        return current()

    assert asyncio.run(inside()) is context


def test_outside_of_a_task_there_is_no_context() -> None:
    with pytest.raises(LookupError):
        current()


def test_a_step_is_reported_executed_and_stored(context: Context, sink: RecordingSink) -> None:
    result = context.step("one", lambda: {"n": 1})

    assert result == {"n": 1}
    assert sink.sent == [("activity", {"activity": "step_running", "step": "one"})]
    assert sink.steps == [("one", {"n": 1})]


def test_a_stored_step_is_not_executed_again(context: Context, sink: RecordingSink) -> None:
    context.step("one", lambda: 1)

    again = Context({**SPEC, "checkpoints": {**SPEC["checkpoints"], **dict(sink.steps)}}, sink)

    assert again.step("kept", lambda: 2) == [1]
    assert again.step("one", lambda: 2) == 1
    assert [name for name, _ in sink.steps] == ["one"]


def test_a_name_that_is_used_again_is_a_step_of_its_own(sink: RecordingSink) -> None:
    def task(context: Context, pages: str) -> list[str]:
        return [context.step("fetch", lambda page=page: f"body of {page}") for page in pages]

    assert task(Context(SPEC, sink), "ab") == ["body of a", "body of b"]
    assert sink.steps == [("fetch", "body of a"), ("fetch#2", "body of b")]

    again = Context({**SPEC, "checkpoints": dict(sink.steps)}, sink)
    assert task(again, "xyc") == ["body of a", "body of b", "body of c"]
    assert sink.steps[2:] == [("fetch#3", "body of c")]


def test_a_step_that_failed_keeps_its_number(sink: RecordingSink, context: Context) -> None:
    with pytest.raises(ZeroDivisionError):
        context.step("one", lambda: 1 / 0)
    context.step("one", lambda: 2)

    assert sink.steps == [("one#2", 2)]


def test_two_running_steps_with_the_same_name_are_refused(
    context: Context, sink: RecordingSink
) -> None:
    async def task() -> list[Any]:
        steps = [context.astep("one", lambda n=n: later(n)) for n in (1, 2)]
        return await asyncio.gather(*steps, return_exceptions=True)

    first, second = asyncio.run(task())

    assert (first, sink.steps) == (1, [("one", 1)])
    assert isinstance(second, StepNameTaken)
    assert str(second) == (
        "two steps called 'one' are running at once; give each a name of its own,"
        " such as f'one-{page}'"
    )
    with pytest.raises(StepNameTaken):
        context.step("outer", lambda: context.step("outer", lambda: 1))


def test_a_name_that_looks_like_a_number_of_another_is_refused(context: Context) -> None:
    with pytest.raises(ValueError, match=r"must not end in .*: 'fetch#2'"):
        context.step("fetch#2", lambda: 1)


def test_a_step_returns_its_result_as_a_later_attempt_gets_it(context: Context) -> None:
    assert context.step("one", lambda: {1: (2, 3)}) == {"1": [2, 3]}


def test_a_failed_step_is_not_stored(context: Context, sink: RecordingSink) -> None:
    with pytest.raises(ZeroDivisionError):
        context.step("one", lambda: 1 / 0)

    assert sink.steps == []


@pytest.mark.parametrize("result", [{1, 2}, math.nan, object()], ids=["set", "nan", "object"])
def test_a_step_whose_result_is_no_json_says_which(
    result: Any, context: Context, sink: RecordingSink
) -> None:
    with pytest.raises(TypeError, match="the result of step 'one' cannot be stored as JSON"):
        context.step("one", lambda: result)

    assert sink.steps == []


async def later(result: Any) -> Any:
    await asyncio.sleep(0)
    return result


def test_async_work_in_a_plain_step_is_refused_with_advice(
    context: Context, sink: RecordingSink
) -> None:
    with pytest.raises(TypeError, match=r"await ctx\.astep"):
        context.step("one", lambda: later(1))

    assert sink.steps == []


def test_async_work_is_a_step_too(context: Context, sink: RecordingSink) -> None:
    async def task() -> list[Any]:
        return [
            await context.astep("one", lambda: later((1, 2))),
            await context.astep("one", lambda: later("again")),
            await context.astep("kept", lambda: later("again")),
        ]

    assert asyncio.run(task()) == [[1, 2], "again", [1]]
    assert sink.steps == [("one", [1, 2]), ("one#2", "again")]
    assert [sent["step"] for sent in sink.sent_of_kind("activity")] == ["one", "one#2"]


def test_plain_work_in_an_async_step_is_refused_with_advice(context: Context) -> None:
    with pytest.raises(TypeError, match=r"use 'ctx\.step"):
        asyncio.run(context.astep("one", lambda: 1))  # type: ignore[arg-type, return-value]


def test_the_event_loop_runs_while_an_async_step_is_stored(tmp_path: Path) -> None:
    class Slow(RecordingSink):
        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.get_running_loop()
            self.others = asyncio.Event()

        def report_step(self, name: str, result: Any) -> None:
            # Returns only because the event loop is free to let the other one run.
            asyncio.run_coroutine_threadsafe(self.others.wait(), self.loop).result()
            super().report_step(name, result)

    async def task() -> list[tuple[str, Any]]:
        ear = Slow()
        context = Context({**SPEC, "folder": str(tmp_path)}, ear)

        async def other() -> None:
            ear.others.set()

        await asyncio.gather(context.astep("one", lambda: later(1)), other())
        return ear.steps

    assert asyncio.run(task()) == [("one", 1)]


def test_a_log_line_is_sent(context: Context, sink: RecordingSink) -> None:
    context.log("hello")

    assert sink.sent == [("log", {"text": "hello"})]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((3, 10, "pages"), {"done": 3, "total": 10, "text": "pages"}),
        ((3,), {"done": 3, "total": None, "text": ""}),
        ((0.5, Decimal("1.5")), {"done": 0.5, "total": 1.5, "text": ""}),
        ((1, math.inf, "two\nlines\t "), {"done": 1, "total": None, "text": "two lines"}),
        ((1, "many"), {"done": 1, "total": None, "text": ""}),
    ],
)
def test_progress_is_sent(
    fields: Any, message: dict[str, Any], context: Context, sink: RecordingSink
) -> None:
    context.progress(*fields)

    assert sink.sent == [("progress", message)]


@pytest.mark.parametrize("done", [math.nan, None, "some", [1]])
def test_progress_that_is_no_number_does_no_harm(
    done: Any, context: Context, sink: RecordingSink
) -> None:
    context.progress(done, 10)

    assert sink.sent == []


def test_progress_in_a_tight_loop_is_thinned_out_but_for_its_end(
    context: Context, sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel.time, "monotonic", lambda: 0.0)
    context = Context({**SPEC, "folder": context.folder}, sink)

    for done in range(10_001):
        context.progress(done, 10_000)
    for _ in range(100):
        context.progress(10_000, 10_000)

    reported = [item["done"] for item in sink.sent_of_kind("progress")]
    assert reported == [*range(channel.BURST), 10_000]


def test_progress_after_a_pause_is_sent_again(
    sink: RecordingSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(channel.time, "monotonic", lambda: now)
    context = Context({**SPEC, "folder": str(tmp_path)}, sink)

    for done in range(1000):
        context.progress(done)
    now = 1.0
    for done in range(1000, 2000):
        context.progress(done)

    reported = [item["done"] for item in sink.sent_of_kind("progress")]
    assert reported == [*range(channel.BURST), *range(1000, 1000 + int(channel.PER_SECOND))]


def test_summaries_are_sent_and_written_to_a_file(
    context: Context, sink: RecordingSink, tmp_path: Path
) -> None:
    context.summary("three\n reports")
    context.summary("zwölf rows")
    context.summary(" ")

    assert sink.sent_of_kind("summary") == [{"text": "three reports"}, {"text": "zwölf rows"}]
    written = (tmp_path / "logs" / "summary.log").read_text(encoding="utf-8")
    assert written == "three reports\nzwölf rows\n"


def test_a_summary_is_masked_and_cut(context: Context, sink: RecordingSink, tmp_path: Path) -> None:
    context.summary("password=hunter2hunter2 " + "long " * 1000)

    (message,) = sink.sent_of_kind("summary")
    assert "hunter2" not in message["text"]
    assert len(message["text"]) <= LINE_LIMIT_CHARACTERS
    assert "hunter2" not in (tmp_path / "logs" / "summary.log").read_text()


def test_a_summary_is_sent_even_if_it_cannot_be_written(
    context: Context, sink: RecordingSink, tmp_path: Path
) -> None:
    (tmp_path / "logs").write_text("in the way")

    context.summary("fine")

    assert sink.sent_of_kind("summary") == [{"text": "fine"}]


def test_an_artifact_is_copied_into_the_folder(
    context: Context, sink: RecordingSink, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "report.csv").write_text("1,2")

    name = context.artifact(tmp_path / "elsewhere" / "report.csv")

    assert name == "report.csv"
    assert (tmp_path / "artifacts" / "report.csv").read_text() == "1,2"
    assert sink.sent == []


def test_skipped_files_of_a_folder_are_logged(
    context: Context, sink: RecordingSink, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "link").symlink_to("/etc/passwd")

    context.artifact(tmp_path / "reports")

    ((_, message),) = sink.sent
    assert message["text"].endswith("not files of that folder: link")


def test_cancelled_is_true_after_sigterm(context: Context) -> None:
    before = signal.getsignal(signal.SIGTERM)
    looks = [context.cancelled]

    os.kill(os.getpid(), signal.SIGTERM)
    looks.append(context.cancelled)
    context.close()

    assert looks == [False, True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_stop_request_can_come_from_a_callback(sink: RecordingSink, tmp_path: Path) -> None:
    requested = False
    spec = {**SPEC, "folder": str(tmp_path)}
    context = Context(spec, sink, stop_requested=lambda: requested)

    before = context.cancelled
    requested = True

    assert (before, context.cancelled) == (False, True)
