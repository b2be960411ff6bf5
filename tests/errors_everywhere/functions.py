"""What functions do: they are brought records, and what they could not deal with comes again."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from longshore.core.dead_letters import DeadMessage
from longshore.core.undelivered import Undelivered, UndeliveredNotice
from longshore.errors import NotFound
from longshore.services.alerting import Alerting
from longshore.services.relay import Relay
from longshore.services.undelivered import UndeliveredEvents
from tests.errors_everywhere.play import Play, Stuck
from tests.errors_everywhere.wire import Wired
from tests.unit.services.stage import TENANT, a_task, task_id

_TIMES = 5
_QUEUE = "default"


class _People:
    channel = "people"

    def __init__(self) -> None:
        self.notices: list[UndeliveredNotice] = []

    async def send(self, notice: UndeliveredNotice) -> None:
        self.notices.append(notice)


async def functions(play: Play) -> None:
    """A change is relayed, an undelivered event kept and told again, a dead message taken."""
    await play.submitted("told", a_task("told"))
    await play.until_job("told")
    await _relayed(play)
    await _undelivered(play)
    await _taken(play)


async def _brought(play: Play, deal: Callable[[], Awaitable[object]]) -> None:
    """As a mapping does: until it says that nothing must come again."""
    for _ in range(_TIMES):
        if not await play.is_answered(deal):
            return
    message = "a record comes again and again"
    raise Stuck(message)


async def _relayed(play: Play) -> None:
    events = await play.raw.events.history(TENANT, f"TASK#{task_id('told', 'told')}")
    records: list[dict[str, Any]] = [{"place": str(one.sequence), "told": [one]} for one in events]

    async def aside(record: Any, reason: str) -> None:
        message = f"{record} can be read: {reason}"
        raise AssertionError(message)

    relay = Relay(
        bus=play.ours.backend.bus,
        place_of=lambda record: str(record["place"]),
        told_by=lambda record: record["told"],
        aside=aside,
    )
    await _brought(play, lambda: relay.tell(records))


async def _undelivered(play: Play) -> None:
    backend, people = play.ours.backend, _People()
    channel: Any = Wired(play.wire, "alerts", people)
    events = await play.raw.events.history(TENANT, f"TASK#{task_id('told', 'told')}")
    service = UndeliveredEvents(
        backend=backend,
        alerting=Alerting(backend, [channel], cool_down=timedelta(minutes=1)),
        read=lambda _: events,
        tenant=TENANT,
    )
    letter = Undelivered(
        message_id="message-1",
        sent_at=backend.clock.now(),
        body="{}",
        source="history",
        reason="it was received too often",
    )
    await _brought(play, lambda: service.take([letter]))
    assert people.notices
    (kept,) = await play.is_answered(service.list)
    assert kept == letter

    async def replayed() -> None:
        # Who asks again because the answer was lost finds that it is told.
        try:
            await service.replay(letter.id)
        except NotFound:
            assert play.heard

    await play.is_answered(replayed)
    assert await play.raw.blobs.keys("undelivered/") == []


async def _taken(play: Play) -> None:
    message = DeadMessage(
        id="message-2",
        queue=_QUEUE,
        body="nonsense",
        receives=21,
        sent_at=play.raw.clock.now(),
    )
    await play.is_answered(lambda: play.ours.dead_letters.take(message, tenant=TENANT))
    assert await play.raw.blobs.get("dead/default/message-2") == b"nonsense"
