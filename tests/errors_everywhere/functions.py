"""What functions do: they are brought records, and what they could not deal with comes again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from longshore.core.queues import QueueMessage
from longshore.core.undelivered import UndeliveredEvent, UndeliveredNotice
from longshore.errors import NotFound
from longshore.services.event_delivery import Relay, UndeliveredEvents
from longshore.services.health import AlertSender
from tests.errors_everywhere.harness import ErrorHarness, Stuck
from tests.errors_everywhere.injection import PortProxy
from tests.unit.services.harness import TENANT, make_task, task_id

_TIMES = 5
_QUEUE = "default"


class _RecordingChannel:
    channel = "people"

    def __init__(self) -> None:
        self.notices: list[UndeliveredNotice] = []

    async def send(self, notice: UndeliveredNotice) -> None:
        self.notices.append(notice)


async def functions(harness: ErrorHarness) -> None:
    """A change is relayed, an undelivered event is stored and replayed, a dead message is taken."""
    await harness.submit("relayed", make_task("relayed"))
    await harness.wait_for_jobs("relayed")
    await _relay_records(harness)
    await _undelivered(harness)
    await _settle_dead_message(harness)


async def _deliver(harness: ErrorHarness, handle: Callable[[], Awaitable[object]]) -> None:
    """As a mapping does: until it says that nothing must come again."""
    for _ in range(_TIMES):
        if not await harness.call_until_answered(handle):
            return
    message = "a record comes again and again"
    raise Stuck(message)


class _ReadableStream:
    """A stream whose records can all be read."""

    def position_of(self, record: Any) -> str:
        return str(record["position"])

    def events_in(self, record: Any) -> Any:
        return record["relayed"]

    async def dead_letter(self, record: Any, reason: str) -> None:
        message = f"{record} can be read: {reason}"
        raise AssertionError(message)


async def _relay_records(harness: ErrorHarness) -> None:
    events = await harness.raw.events.history(TENANT, f"TASK#{task_id('relayed', 'relayed')}")
    records: list[dict[str, Any]] = [
        {"position": str(item.sequence), "relayed": [item]} for item in events
    ]

    relay = Relay(bus=harness.faulty.backend.bus, stream=_ReadableStream())
    await _deliver(harness, lambda: relay.publish(records))


async def _undelivered(harness: ErrorHarness) -> None:
    backend, people = harness.faulty.backend, _RecordingChannel()
    channel: Any = PortProxy(harness.injector, "alerts", people)
    events = await harness.raw.events.history(TENANT, f"TASK#{task_id('relayed', 'relayed')}")
    service = UndeliveredEvents(
        backend=backend,
        alert_sender=AlertSender(backend, [channel], cool_down=timedelta(minutes=1)),
        decode=lambda _: events,
        tenant=TENANT,
    )
    letter = UndeliveredEvent(
        message_id="message-1",
        sent_at=backend.clock.now(),
        body="{}",
        source="history",
        reason="it was received too often",
    )
    await _deliver(harness, lambda: service.store_and_alert([letter]))
    assert people.notices
    (stored,) = await harness.call_until_answered(service.list)
    assert replace(stored, notified=()) == letter

    async def replayed() -> None:
        # A call that is repeated because its answer was lost finds the event replayed.
        try:
            await service.replay(letter.id)
        except NotFound:
            assert harness.caller_errors

    await harness.call_until_answered(replayed)

    async def discarded() -> None:
        # A call that is repeated because its answer was lost finds the event discarded.
        try:
            await service.discard(letter.id)
        except NotFound:
            assert harness.caller_errors

    await _deliver(harness, lambda: service.store_and_alert([letter]))
    await harness.call_until_answered(discarded)
    assert await harness.raw.blobs.list_keys("undelivered/") == []


async def _settle_dead_message(harness: ErrorHarness) -> None:
    message = QueueMessage(
        id="message-2",
        queue=_QUEUE,
        body="nonsense",
        receive_count=21,
        sent_at=harness.raw.clock.now(),
    )
    await harness.call_until_answered(
        lambda: harness.faulty.dead_letters.settle_received(message, tenant=TENANT)
    )
    assert await harness.raw.blobs.get("dead/default/message-2") == b"nonsense"
