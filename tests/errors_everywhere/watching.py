"""Those who look on while work is done: readers of output, and the health check."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from longshore.core import commands as c
from longshore.core.alerting import TOLD_PREFIX, Notice
from longshore.core.budgets import Scope
from longshore.core.failures import ErrorCategory
from longshore.core.health import HealthPolicy
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.messages import body_for
from longshore.core.piles import PileNews
from longshore.core.states import TaskState
from longshore.errors import AlertFailed, UsageError
from longshore.ports.backend import Backend
from longshore.ports.output import OutputEntry, Stream
from longshore.ports.queue import Outgoing
from longshore.services import following
from longshore.services.alerting import Alerting
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from longshore.services.histories import EntityHistory, JobHistory
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, fails, prints
from tests.errors_everywhere.play import Play
from tests.errors_everywhere.wire import Wired
from tests.unit.services.stage import APP, NO_WAIT, TENANT, a_task, job_id, task_id

_LONG = timedelta(seconds=3)
_EVERY = timedelta(seconds=5)
_COOL_DOWN = timedelta(seconds=30)
_SECOND = timedelta(seconds=1)
_NOBODYS = "nobodys"  # a queue that no worker serves


async def readers(play: Play) -> None:
    """All ways to read what tasks print, while they do and afterwards."""
    play.children.plays(
        "chatty",
        Script(says=[prints("broken off\n")], ending=fails()),
        Script(says=[prints("one\n"), _LONG, prints("two\n", Stream.STDERR)]),
    )
    play.children.plays("other", Script(says=[timedelta(seconds=1), prints("beside\n")]))
    await play.submitted("printing", a_task("chatty"), a_task("other"), a_task("mute", "other"))
    # Somebody else may have to finish what the error broke off.
    await play.until_task("printing", "chatty", TaskState.PENDING, TaskState.PROCESSING)
    chatty = task_id("chatty", "printing")
    row = await play.others.task("chatty", "printing")

    async def updated(backend: Backend) -> AsyncIterator[OutputEntry]:
        async for _, batch in following.updates(backend, chatty):
            for entry in batch:
                yield entry

    def of_task(follow: bool, attempt: int | None) -> Callable[[Backend], AsyncIterator[Any]]:
        return lambda backend: following.of_task(backend, row, follow=follow, attempt=attempt)

    def of_job(follow: bool, attempt: int | None) -> Callable[[Backend], AsyncIterator[Any]]:
        job = job_id("printing")
        return lambda backend: following.of_job(backend, job, follow=follow, attempt=attempt)

    live = [updated, of_task(True, None), of_task(True, 1), of_job(True, None)]
    heard = await asyncio.gather(*[_read(play, one) for one in live])
    await play.until_job("printing")
    for one, pieces in zip(live, heard, strict=True):
        # Those of several tasks may have been heard in another order than they were printed.
        assert sorted(map(repr, pieces)) == sorted(map(repr, await _all(one(play.raw))))
    for one in (of_task(False, None), of_task(False, 1), of_job(False, None), of_job(False, 1)):
        assert await _read(play, one) == await _all(one(play.raw))

    def of_entity(backend: Backend) -> AsyncIterator[Any]:
        return EntityHistory(backend, TENANT, f"TASK#{chatty}").more()

    def of_all(backend: Backend) -> AsyncIterator[Any]:
        return JobHistory(backend, TENANT, job_id("printing")).more()

    for history in (of_entity, of_all):
        assert await _read(play, history) == await _all(history(play.raw))


async def _read(play: Play, read: Callable[[Backend], AsyncIterator[Any]]) -> list[Any]:
    return await play.is_answered(lambda: _all(read(play.ours.backend)))


async def _all(pieces: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in pieces]


class _People:
    """Do not listen the first time."""

    channel = "people"

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._busy = True

    async def send(self, notice: Notice) -> None:
        if self._busy:
            self._busy = False
            raise AlertFailed(self.channel, "they are at lunch")
        self.notices.append(notice)


async def health(play: Play) -> None:
    """A task runs too long, others are dead, one is parked: people hear of it, and when it is over.

    Then all is forgotten.
    """
    people = _People()
    await _lost_messages(play)
    await _park(play)
    play.children.plays("doomed", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    play.children.plays("slow", Script(says=[timedelta(seconds=30)]))
    slow = task_id("slow", "slow")
    check = _health_check(play, people)
    running = asyncio.ensure_future(check.run())
    await play.submitted("slow", a_task("slow"))
    await play.submitted("doomed", a_task("doomed"))
    await play.until_child("slow", "slow")
    await play.is_answered(lambda: check.check_one(TENANT, slow))

    async def told() -> bool:
        return bool(people.notices) or (await play.stands("slow", "slow")).terminal

    await play.until(told, "nobody is told of a task that runs too long")
    await play.is_answered(lambda: check.check(TENANT))
    await play.until_job("slow")

    async def over() -> bool:
        urgent = {task.task_id for notice in people.notices for task in notice.urgent}
        recovered = {task.task_id for notice in people.notices for task in notice.recovered}
        return urgent == recovered

    await play.until(over, "nobody is told that it is over")
    await _dead_letters(play, people)
    await _parked(play, people)

    async def forgotten() -> bool:
        return not await play.raw.blobs.keys(TOLD_PREFIX, after="", limit=1)

    await play.until(forgotten, "what was told is never forgotten")
    if running.done():
        error = running.exception()
        play.broke.append(error or RuntimeError("the health check has ended"))
    running.cancel()
    await asyncio.wait({running})


async def _lost_messages(play: Play) -> None:
    """Messages that lead to no task were received until they are dead."""
    queue = play.raw.queue
    bodies = ("nonsense", body_for("job-none_such"))
    await queue.send([Outgoing(queue=_NOBODYS, body=body) for body in bodies])
    for _ in range(RECEIVE_LIMIT + 1):
        await queue.receive([_NOBODYS], limit=10, hidden_for=_SECOND, wait=NO_WAIT)
        await asyncio.sleep(1.0)


async def _dead_letters(play: Play, people: _People) -> None:
    """People hear of what is dead, see to it, and hear that nothing is any more."""

    async def told() -> bool:
        return any(notice.dead for notice in people.notices)

    await play.until(told, "nobody is told of dead letters")
    for message in await play.raw.queue.dead_letters(_NOBODYS, limit=10):
        await play.raw.queue.drop_dead_letter(message.id)

    async def nothing_dead() -> bool:
        # Whatever the error made fail is among them.
        failed = await play.raw.ledger.failed(TENANT, limit=10)
        for task in failed:
            await play.others.dead_letters.replay(TENANT, [task.task_id], by="ann")
        running = [await play.stands(name, name) for name in ("slow", "doomed")]
        return not failed and all(state.terminal for state in running)

    await play.until(nothing_dead, "what is dead stays dead")

    async def nothing_left() -> bool:
        news = [notice.dead.news for notice in people.notices if notice.dead]
        return news[-1] is PileNews.NONE_LEFT

    await play.until(nothing_left, "nobody is told that nothing is dead")


async def _park(play: Play) -> None:
    """A task of a queue that no worker serves has spent all that it may."""
    await play.others.submit(a_task("parked", queue=_NOBODYS), request_id="parked")
    claimed = await play.others.claim(task_id("parked", "parked"))
    park = c.Park(fence=claimed.fence, scope=Scope.TASK, reason="all is spent", duration=_SECOND)
    await play.others.transitions.task(claimed.id, park)


async def _parked(play: Play, people: _People) -> None:
    """People hear of what is parked, allow more, and hear that nothing is any more."""

    async def told() -> bool:
        return any(notice.parked for notice in people.notices)

    await play.until(told, "nobody is told of parked tasks")
    parked = task_id("parked", "parked")
    await play.others.transitions.task(parked, c.Unpark(scope=Scope.TASK, by="ann"))
    await play.others.complete(parked)

    async def nothing_left() -> bool:
        news = [notice.parked.news for notice in people.notices if notice.parked]
        return news[-1] is PileNews.NONE_LEFT

    await play.until(nothing_left, "nobody is told that nothing is parked")


def _health_check(play: Play, people: _People) -> HealthCheck:
    backend = play.ours.backend
    # Rows that cannot be read together are read one by one.
    error = UsageError("a row is damaged")
    play.meant.append(error)
    damaged: Any = Flaky(backend.ledger, "tasks", error)
    channel: Any = Wired(play.wire, "alerts", people)
    return HealthCheck(
        backend=replace(backend, ledger=damaged),
        presence=play.ours.presence,
        alerting=Alerting(backend, [channel], cool_down=_COOL_DOWN),
        app=APP,
        policy=HealthCheckPolicy(every=_EVERY, thresholds=HealthPolicy(longest_run=_LONG)),
        tenant=TENANT,
    )
