"""One run of a scenario with one error in it, and the conditions that must hold at its end."""

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

from longshore.audit.audit import audit
from longshore.audit.memory_reader import read_snapshot
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendRejected, LongshoreError
from longshore.services.spill import DocumentStore
from tests.errors_everywhere.harness import CANARY, ErrorHarness, Stuck
from tests.errors_everywhere.injection import Call, InjectedFault
from tests.errors_everywhere.kinds import ErrorKind
from tests.errors_everywhere.scenarios import Scenario
from tests.unit.services.harness import TENANT, make_task
from verification.simulation.loop import VirtualLoop

# A worker that cannot even begin has taken nothing: it says so and ends, and another is started.
_AT_THE_START = frozenset({"worker_registry.register", "runner.open"})
# One that has given back everything may say how it ended.
_AT_THE_END = frozenset({"runner.close", "worker_registry.deregister"})
_ALL = 10_000


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended."""

    job_id: str
    state: TaskState
    result: Any


@dataclass(slots=True)
class Report:
    """What came of a run."""

    fault: InjectedFault | None
    ends: dict[str, TaskEnd] = field(default_factory=dict)  # by task
    calls: list[Call] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class _LogRecorder(logging.Handler):
    """What the services log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.exceptions: list[BaseException] = []
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.exceptions.append(record.exc_info[1])
        self.messages.append(f"{record.getMessage()} {getattr(record, 'error', '')}")


def run(scenario: Scenario, *, atomic: bool, fault: InjectedFault | None = None) -> Report:
    """Carry out a scenario; the report has the violations."""
    report = Report(fault)
    loop = VirtualLoop()
    unheard: list[str] = []
    loop.set_exception_handler(lambda _, context: unheard.append(_described(context)))
    folder = Path(tempfile.mkdtemp(prefix="errors-everywhere-"))
    collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        with _recording_log() as notices:
            loop.run_until_complete(_run_scenario(scenario, folder, atomic, report, notices))
    except Exception as error:  # noqa: BLE001 - of the run itself, and no less of a breach
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.violations.append(f"the run broke: {error!r} at {where.filename}:{where.lineno}")
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)
        if collecting:
            gc.enable()
    report.violations += unheard
    return report


def _described(context: dict[str, Any]) -> str:
    return f"an error was not handled: {context.get('message')} {context.get('exception')!r}"


@contextmanager
def _recording_log() -> Iterator[_LogRecorder]:
    logger, notices = logging.getLogger("longshore"), _LogRecorder()
    before = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(notices)
    try:
        yield notices
    finally:
        logger.removeHandler(notices)
        logger.setLevel(before[0])
        logger.propagate = before[1]


async def _run_scenario(
    scenario: Scenario, folder: Path, atomic: bool, report: Report, log: _LogRecorder
) -> None:
    run_scenario = ErrorHarness(folder, atomic=atomic, fault=report.fault, leading=scenario.leading)
    await run_scenario.prepare()
    await scenario.prepare(run_scenario)
    run_scenario.start_worker()
    try:
        await scenario.run(run_scenario)
        await run_scenario.clean.submit(make_task(CANARY), request_id=CANARY)
        await run_scenario.wait_for_jobs(CANARY)
        await run_scenario.wait_until_idle()
    except Stuck as error:
        report.violations.append(f"stuck: {error}")
    await _stop_worker(run_scenario, report)
    report.calls = run_scenario.injector.calls
    report.ends = await _ends(run_scenario)
    report.violations += [
        str(result) for result in audit(read_snapshot(run_scenario.raw, settled=True))
    ]
    _check_children(run_scenario, report)
    if report.fault is not None:
        _check_fault(run_scenario, report, log)
    elif (
        run_scenario.worker_errors
        or run_scenario.caller_errors
        or set(log.exceptions) - set(run_scenario.expected_errors)
    ):
        report.violations.append(
            f"without any fault: {run_scenario.worker_errors} {log.exceptions}"
        )
    await run_scenario.close()


async def _stop_worker(harness: ErrorHarness, report: Report) -> None:
    try:
        async with asyncio.timeout(60):
            await harness.stop_worker()
    except TimeoutError:
        report.violations.append("stuck: the worker does not stop")


async def _ends(harness: ErrorHarness) -> dict[str, TaskEnd]:
    documents = DocumentStore(harness.raw.blobs)
    page = await harness.raw.ledger.list_tasks(TENANT, limit=_ALL)
    return {
        row.id: TaskEnd(row.spec.job_id, row.state, await documents.load(row.result))
        for row in page.items
    }


def _check_children(harness: ErrorHarness, report: Report) -> None:
    for key in harness.children.alive:
        report.violations.append(f"the child of {key!r} is alive")
    for child in harness.children.children:
        if not child.closed and (report.fault is None or report.fault.kind.transient):
            report.violations.append(f"the child of {child.spec.key!r} was not closed")


def _check_fault(harness: ErrorHarness, report: Report, log: _LogRecorder) -> None:
    fault, raised = report.fault, harness.injector.raised
    assert fault is not None
    if raised is None:
        report.violations.append("the call was never made: runs are not alike")
        return
    method, kind = fault.site.method, fault.kind
    for error in harness.worker_errors:
        allowed = method in _AT_THE_START | _AT_THE_END and error is raised
        if not allowed:
            report.violations.append(f"the worker ended by {error!r}")
    if kind.unexpected and not _was_reported(raised, harness, log):
        report.violations.append("the error was not reported")
    for error in log.exceptions:
        if not isinstance(error, LongshoreError) and raised not in _chain(error):
            report.violations.append(f"a service broke: {error!r}")


def _was_reported(raised: Exception, harness: ErrorHarness, log: _LogRecorder) -> bool:
    if any(
        raised in _chain(error)
        for error in (*harness.caller_errors, *harness.worker_errors, *log.exceptions)
    ):
        return True
    # For one of ours the words are enough; of anything else the trace is wanted. Of an alert
    # channel only the name is reported: the message of its library may contain a secret.
    assert harness.injector.fault is not None
    if harness.injector.fault.site.method == "alerts.send":
        return any(type(raised).__name__ in word for word in log.messages)
    return isinstance(raised, BackendRejected) and any(str(raised) in word for word in log.messages)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def differences(expected: dict[str, TaskEnd], report: Report, kind: ErrorKind) -> list[str]:
    """What is other than without the error, and may not be."""
    ends = report.ends
    other = {
        task_id: (expected.get(task_id), ends.get(task_id))
        for task_id in expected.keys() | ends.keys()
        if expected.get(task_id) != ends.get(task_id)
    }
    if not other:
        return []
    if kind.transient:
        return [f"{task_id}: {was} became {now}" for task_id, (was, now) in other.items()]
    result = [task_id for task_id, pair in other.items() if None in pair]
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
    if result or len(failed) != 1 or len(jobs) != 1 or not behind:
        return [f"{task_id}: {was} became {now}" for task_id, (was, now) in other.items()]
    return []
