"""One run of a scene with one error in it, and what must be true of it in the end."""

import asyncio
import gc
import logging
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshore.core.states import TaskState
from longshore.errors import BackendRejected, LongshoreError
from longshore.services.documents import Documents
from longshore.testing.auditing.audit import audit
from longshore.testing.auditing.from_memory import evidence_of
from tests.errors_everywhere.kinds import Kind
from tests.errors_everywhere.play import CANARY, Loop, Play, Stuck
from tests.errors_everywhere.scenes import Scene
from tests.errors_everywhere.wire import Call, Trouble
from tests.unit.services.stage import TENANT, a_task

# A worker that cannot even begin has taken nothing: it says so and ends, and another is started.
_AT_THE_START = frozenset({"presence.appear", "runner.open"})
# One that has given back everything may say how it ended.
_AT_THE_END = frozenset({"runner.close", "presence.leave"})
_ALL = 10_000


@dataclass(frozen=True, slots=True)
class End:
    """How a task ended."""

    job_id: str
    state: TaskState
    result: Any


@dataclass(slots=True)
class Report:
    """What came of a run."""

    trouble: Trouble | None
    ends: dict[str, End] = field(default_factory=dict)  # by task
    calls: list[Call] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)


class _Told(logging.Handler):
    """What the services log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.with_trace: list[BaseException] = []
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.with_trace.append(record.exc_info[1])
        self.words.append(f"{record.getMessage()} {getattr(record, 'error', '')}")


def run(scene: Scene, *, atomic: bool, trouble: Trouble | None = None) -> Report:
    """Carry out a scene; what is wrong is in the report."""
    report = Report(trouble)
    loop = Loop()
    unheard: list[str] = []
    loop.set_exception_handler(lambda _, context: unheard.append(_described(context)))
    folder = Path(tempfile.mkdtemp(prefix="errors-everywhere-"))
    collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        with _logged() as told:
            loop.run_until_complete(_carried_out(scene, folder, atomic, report, told))
    except Exception as error:  # noqa: BLE001 - of the run itself, and no less of a breach
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.breaches.append(f"the run broke: {error!r} at {where.filename}:{where.lineno}")
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)
        if collecting:
            gc.enable()
    report.breaches += unheard
    return report


def _described(context: dict[str, Any]) -> str:
    return f"nobody heard of it: {context.get('message')} {context.get('exception')!r}"


@contextmanager
def _logged() -> Iterator[_Told]:
    logger, told = logging.getLogger("longshore"), _Told()
    before = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(told)
    try:
        yield told
    finally:
        logger.removeHandler(told)
        logger.setLevel(before[0])
        logger.propagate = before[1]


async def _carried_out(
    scene: Scene, folder: Path, atomic: bool, report: Report, told: _Told
) -> None:
    play = Play(folder, atomic=atomic, trouble=report.trouble, leading=scene.leading)
    await play.prepare()
    await scene.prepare(play)
    play.begin_shift()
    try:
        await scene.act(play)
        await play.others.submit(a_task(CANARY), request_id=CANARY)
        await play.until_job(CANARY)
        await play.until_rest()
    except Stuck as error:
        report.breaches.append(f"stuck: {error}")
    await _ended(play, report)
    report.calls = play.wire.calls
    report.ends = await _ends(play)
    report.breaches += [str(found) for found in audit(evidence_of(play.raw, settled=True))]
    _judge_children(play, report)
    if report.trouble is not None:
        _judge(play, report, told)
    elif play.broke or play.heard or set(told.with_trace) - set(play.meant):
        report.breaches.append(f"without any trouble: {play.broke} {told.with_trace}")
    await play.leave()


async def _ended(play: Play, report: Report) -> None:
    try:
        async with asyncio.timeout(60):
            await play.end_shift()
    except TimeoutError:
        report.breaches.append("stuck: the worker does not stop")


async def _ends(play: Play) -> dict[str, End]:
    documents = Documents(play.raw.blobs)
    page = await play.raw.ledger.list_tasks(TENANT, limit=_ALL)
    return {
        row.id: End(row.spec.job_id, row.state, await documents.load(row.result))
        for row in page.items
    }


def _judge_children(play: Play, report: Report) -> None:
    for key in play.children.alive:
        report.breaches.append(f"the child of {key!r} is alive")
    for child in play.children.children:
        if not child.closed and (report.trouble is None or report.trouble.kind.passing):
            report.breaches.append(f"the child of {child.order.key!r} was not closed")


def _judge(play: Play, report: Report, told: _Told) -> None:
    trouble, raised = report.trouble, play.wire.raised
    assert trouble is not None
    if raised is None:
        report.breaches.append("the call was never made: runs are not alike")
        return
    method, kind = trouble.site.method, trouble.kind
    for error in play.broke:
        allowed = method in _AT_THE_START | _AT_THE_END and error is raised
        if not allowed:
            report.breaches.append(f"the worker ended by {error!r}")
    if kind.unforeseen and not _was_told(raised, play, told):
        report.breaches.append("nobody was told of it")
    for error in told.with_trace:
        if not isinstance(error, LongshoreError) and raised not in _chain(error):
            report.breaches.append(f"a service broke: {error!r}")


def _was_told(raised: Exception, play: Play, told: _Told) -> bool:
    if any(raised in _chain(error) for error in (*play.heard, *play.broke, *told.with_trace)):
        return True
    # For one of ours the words are enough; of anything else the trace is wanted. Only of a channel
    # to people nothing but the name is told: what its library says may hold a secret.
    assert play.wire.trouble is not None
    if play.wire.trouble.site.method == "alerts.send":
        return any(type(raised).__name__ in word for word in told.words)
    return isinstance(raised, BackendRejected) and any(str(raised) in word for word in told.words)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def differences(expected: dict[str, End], report: Report, kind: Kind) -> list[str]:
    """What is other than without the error, and may not be."""
    ends = report.ends
    other = {
        task_id: (expected.get(task_id), ends.get(task_id))
        for task_id in expected.keys() | ends.keys()
        if expected.get(task_id) != ends.get(task_id)
    }
    if not other:
        return []
    if kind.passing:
        return [f"{task_id}: {was} became {now}" for task_id, (was, now) in other.items()]
    found = [task_id for task_id, pair in other.items() if None in pair]
    failed = [
        task_id
        for task_id, (_, now) in other.items()
        if now is not None and now.state is TaskState.FAILED
    ]
    jobs = {end.job_id for pair in other.values() for end in pair if end is not None}
    behind = all(
        now is not None and now.state in (TaskState.FAILED, TaskState.WAITING)
        for _, now in other.values()
    )
    # One that would have failed may have had another chance.
    spared = len(other) == 1 and all(
        was and now and (was.state, now.state) == (TaskState.FAILED, TaskState.COMPLETED)
        for was, now in other.values()
    )
    if spared:
        return []
    if found or len(failed) != 1 or len(jobs) != 1 or not behind:
        return [f"{task_id}: {was} became {now}" for task_id, (was, now) in other.items()]
    return []
