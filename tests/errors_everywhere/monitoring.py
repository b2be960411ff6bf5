"""Those who look on while work is done: readers of output, and the health check."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from longshore.core.alerts import (
    CHANNEL_STATE_PREFIX,
    BacklogChange,
    BacklogKind,
    HealthNotice,
)
from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.health import HealthPolicy
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import AlertFailed, UsageError
from longshore.ports.backend import Backend
from longshore.ports.output import OutputChunk, Stream
from longshore.ports.task_queue import OutgoingMessage
from longshore.services import followers
from longshore.services.health import AlertSender, HealthCheck
from longshore.services.reads import get_job_of, get_task_of
from longshore.testing.fake_runner import Script, fails, prints
from longshore.testing.flaky_port import FlakyPort
from tests.errors_everywhere.harness import ErrorHarness
from tests.errors_everywhere.injection import PortProxy
from tests.unit.services.harness import APP, NO_WAIT, TENANT, job_id, make_task, task_id

_LONG = timedelta(seconds=3)
_EVERY = timedelta(seconds=5)
_COOL_DOWN = timedelta(seconds=30)
_SECOND = timedelta(seconds=1)
_UNSERVED = "unserved"  # a queue that no worker serves


async def readers(harness: ErrorHarness) -> None:
    """All ways to read what tasks print, while they do and afterwards."""
    harness.children.set_scripts(
        "chatty",
        Script(reports=[prints("broken off\n")], ending=fails()),
        Script(reports=[prints("one\n"), _LONG, prints("two\n", Stream.STDERR)]),
    )
    harness.children.set_scripts(
        "other", Script(reports=[timedelta(seconds=1), prints("beside\n")])
    )
    await harness.submit(
        "printing", make_task("chatty"), make_task("other"), make_task("mute", "other")
    )
    # Another service may have to finish what the error broke off.
    await harness.wait_for_task("printing", "chatty", TaskState.PENDING, TaskState.PROCESSING)
    chatty = task_id("chatty", "printing")

    async def updated(backend: Backend) -> AsyncIterator[OutputChunk]:
        async for _, batch in followers.follow_task(backend, chatty):
            for entry in batch:
                yield entry

    def of_job(follow: bool, attempt: int | None) -> Callable[[Backend], AsyncIterator[Any]]:
        job = job_id("printing")
        return lambda backend: followers.read_job_output(
            backend, job, follow=follow, attempt=attempt
        )

    live = [updated, of_job(True, None), of_job(True, 1)]
    received = await asyncio.gather(*[_read(harness, stream) for stream in live])
    await harness.wait_for_jobs("printing")
    for stream, pieces in zip(live, received, strict=True):
        # Pieces of several tasks may have been received in another order than they were printed.
        assert sorted(map(repr, pieces)) == sorted(map(repr, await _collect(stream(harness.raw))))
    for stream in (of_job(False, None), of_job(False, 1)):
        assert await _read(harness, stream) == await _collect(stream(harness.raw))

    async def of_entity(backend: Backend) -> AsyncIterator[Any]:
        row = await get_task_of(backend.ledger, TENANT, chatty)
        feed = followers.task_feed(backend, row)
        async for item in followers.follow_events(feed, clock=backend.clock, poll=timedelta(0)):
            yield item

    async def of_all(backend: Backend) -> AsyncIterator[Any]:
        job = await get_job_of(backend.ledger, TENANT, job_id("printing"))
        feed = followers.job_feed(backend, job, tasks=True)
        async for item in followers.follow_events(feed, clock=backend.clock, poll=timedelta(0)):
            yield item

    for history in (of_entity, of_all):
        assert await _read(harness, history) == await _collect(history(harness.raw))


async def _read(harness: ErrorHarness, read: Callable[[Backend], AsyncIterator[Any]]) -> list[Any]:
    return await harness.call_until_answered(lambda: _collect(read(harness.faulty.backend)))


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in items]


class _RecordingChannel:
    """Do not listen the first time."""

    channel = "people"

    def __init__(self) -> None:
        self.notices: list[HealthNotice] = []
        self._busy = True

    async def send(self, notice: HealthNotice) -> None:
        if self._busy:
            self._busy = False
            raise AlertFailed(self.channel, "they are at lunch")
        self.notices.append(notice)


async def health(harness: ErrorHarness) -> None:
    """Alerts report a task that runs too long, dead tasks and a parked task, and the end of each.

    Then all is forgotten.
    """
    people = _RecordingChannel()
    await _prepare_dead_messages(harness)
    await _prepare_discarded_message(harness)
    await _park(harness)
    harness.children.set_scripts("doomed", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    harness.children.set_scripts("slow", Script(reports=[timedelta(seconds=30)]))
    slow = task_id("slow", "slow")
    check = _health_check(harness, people)
    running = asyncio.ensure_future(check.run())
    await harness.submit("slow", make_task("slow"))
    await harness.submit("doomed", make_task("doomed"))
    await harness.wait_for_child("slow", "slow")
    row = await harness.raw.ledger.get_task(slow)
    assert row is not None
    await harness.call_until_answered(lambda: check.check_task(row))

    async def notices() -> bool:
        return bool(people.notices) or (await harness.state_of("slow", "slow")).terminal

    await harness.wait_until(notices, "no alert reports a task that runs too long")
    await harness.call_until_answered(lambda: check.check_tenant(TENANT))
    await harness.wait_for_jobs("slow")

    async def over() -> bool:
        urgent = {task.task_id for notice in people.notices for task in notice.urgent}
        recovered = {task.task_id for notice in people.notices for task in notice.recovered}
        return urgent == recovered

    await harness.wait_until(over, "no alert reports that it is over")
    await _dead_letters(harness, people)
    await _parked(harness, people)

    async def forgotten() -> bool:
        return not await harness.raw.blobs.list_keys(CHANNEL_STATE_PREFIX, after="", limit=1)

    await harness.wait_until(forgotten, "the state of the channel is never deleted")
    if running.done():
        error = running.exception()
        harness.worker_errors.append(error or RuntimeError("the health check has ended"))
    running.cancel()
    await asyncio.wait({running})


async def _prepare_dead_messages(harness: ErrorHarness) -> None:
    """Messages that lead to no task were received until they are dead."""
    queue = harness.raw.queue
    bodies = ("nonsense", message_body("job-none_such"))
    await queue.send([OutgoingMessage(queue=_UNSERVED, body=body) for body in bodies])
    for _ in range(RECEIVE_LIMIT + 1):
        await queue.receive([_UNSERVED], limit=10, hidden_for=_SECOND, wait=NO_WAIT)
        await asyncio.sleep(1.0)


async def _prepare_discarded_message(harness: ErrorHarness) -> None:
    """An operator has discarded a message: the check reads that it was not a worker."""
    await harness.raw.events.append(
        tenant=TENANT,
        app=APP,
        entity_id="default",
        body=MessageRejected(queue="default", message_id="m", reason="discarded by ann"),
        context=EventContext(origin="operator"),
        now=harness.raw.clock.now(),
    )


async def _dead_letters(harness: ErrorHarness, channel: _RecordingChannel) -> None:
    """An alert reports dead letters; they are settled, and an alert reports that none is left."""

    async def notices() -> bool:
        return any(BacklogKind.DEAD_LETTERS in notice.backlogs for notice in channel.notices)

    await harness.wait_until(notices, "no alert reports dead letters")
    for message in await harness.raw.queue.dead_letters(_UNSERVED, limit=10):
        await harness.raw.queue.delete_dead_letter(message.id)

    async def nothing_dead() -> bool:
        # Tasks that failed because of the error are among them.
        failed = await harness.raw.ledger.failed_tasks(TENANT, limit=10)
        for task in failed:
            await harness.clean.dead_letters.replay(TENANT, [task.task_id], by="ann")
        running = [await harness.state_of(name, name) for name in ("slow", "doomed")]
        return not failed and all(state.terminal for state in running)

    await harness.wait_until(nothing_dead, "what is dead stays dead")

    async def nothing_left() -> bool:
        news = _changes(channel, BacklogKind.DEAD_LETTERS)
        return news[-1] is BacklogChange.NONE_LEFT

    await harness.wait_until(nothing_left, "no alert reports that no dead letter is left")


def _changes(channel: _RecordingChannel, kind: BacklogKind) -> list[BacklogChange]:
    return [notice.backlogs[kind].change for notice in channel.notices if kind in notice.backlogs]


async def _park(harness: ErrorHarness) -> None:
    """A task of a queue that no worker serves has spent all that it may."""
    await harness.clean.submit(make_task("parked", queue=_UNSERVED), request_id="parked")
    claimed = await harness.clean.claim(task_id("parked", "parked"))
    park = c.Park(
        fence=claimed.fence,
        scope=BudgetScope.TASK,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=_SECOND,
    )
    await harness.clean.transitions.apply_to_task(claimed.id, park)


async def _parked(harness: ErrorHarness, channel: _RecordingChannel) -> None:
    """An alert reports parked tasks; the budget is raised; an alert reports that none is left."""

    async def notices() -> bool:
        return any(BacklogKind.PARKED_TASKS in notice.backlogs for notice in channel.notices)

    await harness.wait_until(notices, "no alert reports parked tasks")
    parked = task_id("parked", "parked")
    await harness.clean.transitions.apply_to_task(
        parked, c.Unpark(scope=BudgetScope.TASK, by="ann")
    )
    await harness.clean.complete(parked)

    async def nothing_left() -> bool:
        news = _changes(channel, BacklogKind.PARKED_TASKS)
        return news[-1] is BacklogChange.NONE_LEFT

    await harness.wait_until(nothing_left, "no alert reports that no parked task is left")


def _health_check(harness: ErrorHarness, channel: _RecordingChannel) -> HealthCheck:
    backend = harness.faulty.backend
    # Rows that cannot be read together are read one by one.
    error = UsageError("a row is damaged")
    harness.expected_errors.append(error)
    damaged: Any = FlakyPort(backend.ledger, "get_tasks", error)
    wired: Any = PortProxy(harness.injector, "alerts", channel)
    return HealthCheck(
        backend=replace(backend, ledger=damaged),
        worker_registry=harness.faulty.worker_registry,
        alert_sender=AlertSender(backend, [wired], cool_down=_COOL_DOWN),
        app=APP,
        every=_EVERY,
        thresholds=HealthPolicy(longest_run=_LONG),
        tenant=TENANT,
    )
