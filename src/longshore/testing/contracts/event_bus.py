"""The contract of the ``EventBus``.

Events may come in another order and more than once, so clauses compare what came as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any

from longshore.core.events.event import Event
from longshore.core.tasks import commands as c
from longshore.ports.backend import Backend
from longshore.ports.events import Delivery
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    an_event,
    append_event,
    apply_command,
    claim,
    commit,
    commit_job,
    events_to_wire,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import (
    NO_WAIT,
    START,
    Opener,
    PortContract,
    advance_until_done,
    clause,
    running,
    settle,
    without_time_passing,
)

SECOND = timedelta(seconds=1)
WAKE_UPS = 100
MAX_DELIVERIES = 50
RELEASED = "Task Released"
"""The type of what ``an_event`` gives."""


class EventBusContract(PortContract):
    """What holds for every bus."""

    @clause
    async def test_a_consumer_without_events_gets_nothing(self, backend: Backend) -> None:
        assert await _receive(backend) is None

    @clause
    async def test_every_recorded_event_is_delivered(self, backend: Backend) -> None:
        created, job = new_task(), new_job()
        await commit(backend, created)
        await commit_job(backend, job)
        await backend.require_bus().publish([an_event(1, task_id="job-one_b")])
        appended = await append_event(backend)

        types = ["Task Pending", "Job Created", RELEASED, "Message Rejected"]
        came = await _receive_all(backend, types=types)

        expected = [*created.events, *job.events, an_event(1, task_id="job-one_b"), appended]
        assert _sorted(came) == _sorted(expected)

    @clause
    async def test_a_new_consumer_starts_with_the_first_event(self, backend: Backend) -> None:
        await backend.require_bus().publish([an_event(1), an_event(2)])
        await _receive_all(backend, "first")
        await backend.require_bus().publish([an_event(3)])

        came = await _receive_all(backend, "second")

        assert _numbers(came) == [1, 2, 3]

    @clause
    async def test_events_of_every_tenant_come(self, backend: Backend) -> None:
        await backend.require_bus().publish([an_event(1), an_event(1, tenant="evil")])

        came = await _receive_all(backend)

        assert sorted(event.tenant for event in came) == ["acme", "evil"]

    @clause
    async def test_only_events_of_the_requested_types_come(self, backend: Backend) -> None:
        pending = await commit(backend, new_task())
        claimed = await commit(backend, claim(pending))
        await commit(backend, apply_command(claimed, c.Release(fence=1, reason="the worker stops")))

        came = await _receive_all(backend, types=["Task Pending", RELEASED])

        assert _numbers(came) == [1, 3]

    @clause
    async def test_asking_for_one_type_passes_over_no_event_of_another(
        self, backend: Backend
    ) -> None:
        await backend.require_bus().publish([an_event(1)])

        assert await _receive(backend, types=["Job Completed"]) is None
        assert _numbers(await _receive_all(backend, types=[RELEASED])) == [1]

    @clause
    async def test_a_delivery_has_no_more_events_than_the_limit_and_all_come(
        self, backend: Backend
    ) -> None:
        await backend.require_bus().publish([an_event(sequence) for sequence in range(1, 8)])

        came: list[Event] = []
        while delivery := await _receive(backend, limit=3):
            assert 1 <= len(delivery.events) <= 3
            came += delivery.events
            await backend.require_bus().acknowledge("dispatcher", delivery.receipt)

        assert _numbers(came) == [1, 2, 3, 4, 5, 6, 7]

    @clause
    async def test_a_delivery_comes_again_until_it_is_acknowledged(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await backend.require_bus().publish([an_event(1), an_event(2)])
        first = await _receive(backend)
        clock.advance(timedelta(hours=1))

        again = await _receive(backend)

        assert first is not None
        assert again is not None
        assert _numbers(first.events) == _numbers(again.events) == [1, 2]

    @clause
    async def test_an_acknowledged_delivery_does_not_come_again(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await backend.require_bus().publish([an_event(1)])
        delivery = await _receive(backend)
        assert delivery is not None

        await backend.require_bus().acknowledge("dispatcher", delivery.receipt)

        clock.advance(timedelta(hours=1))
        assert await _receive(backend) is None
        await backend.require_bus().publish([an_event(2)])
        assert _numbers(await _receive_all(backend)) == [2]

    @clause
    async def test_consumers_do_not_take_events_from_each_other(self, backend: Backend) -> None:
        await backend.require_bus().publish([an_event(1), an_event(2)])

        first = await _receive_all(backend, "dispatcher")
        second = await _receive_all(backend, "alerts")

        assert _numbers(first) == _numbers(second) == [1, 2]

    @clause
    async def test_a_waiting_consumer_gets_an_event_as_soon_as_it_is_recorded(
        self, backend: Backend
    ) -> None:
        async with running(_receive(backend, wait=20 * SECOND)) as waiting:
            assert not waiting.done()
            await backend.require_bus().publish([an_event(1)])

            delivery = await without_time_passing(waiting)

        assert delivery is not None
        assert _numbers(delivery.events) == [1]

    @clause
    async def test_a_waiting_consumer_gets_an_event_as_soon_as_its_row_is_committed(
        self, backend: Backend
    ) -> None:
        receive = _receive(backend, types=["Task Pending"], wait=20 * SECOND)
        async with running(receive) as waiting:
            await commit(backend, new_task())

            assert await without_time_passing(waiting) is not None

    @clause
    async def test_an_event_of_another_type_ends_no_wait(self, backend: Backend) -> None:
        async with running(_receive(backend, types=["Job Completed"], wait=SECOND)) as waiting:
            await backend.require_bus().publish([an_event(1)])
            await settle()

            assert not waiting.done()

    @clause
    async def test_a_consumer_gives_up_after_its_wait_and_not_before(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        async with running(_receive(backend, wait=20 * SECOND)) as waiting:
            clock.advance(19 * SECOND)
            await settle()
            assert not waiting.done()

            assert await advance_until_done(waiting, clock, step=SECOND) is None
            assert clock.now() - START < 40 * SECOND

    @clause
    async def test_no_event_is_missed_between_looking_and_waiting(self, backend: Backend) -> None:
        for number in range(1, WAKE_UPS + 1):
            receive = asyncio.create_task(_receive(backend, wait=20 * SECOND))
            # The event comes a little later each time, to meet every step of the receiver.
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await backend.require_bus().publish([an_event(number)])

            delivery = await without_time_passing(receive)

            assert delivery is not None
            assert _numbers(delivery.events) == [number]
            await backend.require_bus().acknowledge("dispatcher", delivery.receipt)

    @clause
    async def test_a_published_event_comes(self, backend: Backend) -> None:
        refused = await backend.require_bus().publish([an_event(1), an_event(2)])

        assert refused == []
        assert _numbers(await _receive_all(backend)) == [1, 2]


class LogBusContract(PortContract):
    """What holds for a bus that is the event log itself, read by cursors."""

    @clause
    async def test_acknowledging_covers_everything_before(self, backend: Backend) -> None:
        await backend.require_bus().publish([an_event(1), an_event(2), an_event(3)])
        await _receive(backend, limit=1)
        longer = await _receive(backend, limit=2)
        assert longer is not None

        await backend.require_bus().acknowledge("dispatcher", longer.receipt)

        assert _numbers(await _receive_all(backend)) == [3]

    @clause
    async def test_acknowledging_late_or_twice_does_not_go_back(self, backend: Backend) -> None:
        await backend.require_bus().publish([an_event(1), an_event(2), an_event(3)])
        shorter = await _receive(backend, limit=1)
        longer = await _receive(backend, limit=2)
        assert shorter is not None
        assert longer is not None

        for delivery in (longer, longer, shorter):
            await backend.require_bus().acknowledge("dispatcher", delivery.receipt)

        assert _numbers(await _receive_all(backend)) == [3]

    @clause
    async def test_publishing_what_is_recorded_does_not_double_it(self, backend: Backend) -> None:
        created = new_task()
        await commit(backend, created)
        before = await _receive_all(backend, types=["Task Pending"])

        refused = await backend.require_bus().publish(created.events)

        assert refused == []
        assert len(before) == 1
        assert await _receive_all(backend, types=["Task Pending"]) == []

    @clause
    async def test_an_event_that_is_not_accepted_is_returned_and_delays_no_other(
        self, backend: Backend
    ) -> None:
        await backend.require_bus().publish([an_event(1)])
        impostor = an_event(1, reason="another reason")

        refused = await backend.require_bus().publish([impostor, an_event(2)])

        assert refused == [impostor]
        assert _sorted(await _receive_all(backend)) == _sorted([an_event(1), an_event(2)])


class EventBusSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_consumer_goes_on_where_it_acknowledged_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as before:
            await before.require_bus().publish([an_event(1), an_event(2), an_event(3)])
            delivery = await _receive(before, limit=2)
            assert delivery is not None
            await before.require_bus().acknowledge("dispatcher", delivery.receipt)
            await _receive(before)

        async with open_backend() as again:
            assert _numbers(await _receive_all(again)) == [3]

    @clause
    async def test_a_waiting_consumer_gets_what_another_instance_records(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            async with running(_receive(second, wait=60 * SECOND)) as waiting:
                await first.require_bus().publish([an_event(1)])

                delivery = await advance_until_done(waiting, clock, step=SECOND)

            assert delivery is not None

    @clause
    async def test_a_receipt_can_be_acknowledged_in_another_instance(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await first.require_bus().publish([an_event(1)])
            delivery = await _receive(first)
            assert delivery is not None

            await second.require_bus().acknowledge("dispatcher", delivery.receipt)

            assert await _receive(first) is None


def _receive(
    backend: Backend,
    consumer: str = "dispatcher",
    *,
    types: Iterable[str] = (RELEASED,),
    limit: int = 10,
    wait: timedelta = NO_WAIT,
) -> Coroutine[Any, Any, Delivery | None]:
    return backend.require_bus().receive(consumer, types=list(types), limit=limit, wait=wait)


async def _receive_all(
    backend: Backend, consumer: str = "dispatcher", *, types: Iterable[str] = (RELEASED,)
) -> list[Event]:
    """Everything there is for a consumer, acknowledged as it comes."""
    events: list[Event] = []
    for _ in range(MAX_DELIVERIES):
        delivery = await _receive(backend, consumer, types=types)
        if delivery is None:
            return events
        events += delivery.events
        await backend.require_bus().acknowledge(consumer, delivery.receipt)
    message = f"{MAX_DELIVERIES} deliveries of a few events, and still no end"
    raise AssertionError(message)


def _sorted(events: Iterable[Event]) -> list[dict[str, Any]]:
    return sorted(events_to_wire(events), key=lambda event: str(event["eventId"]))


def _numbers(events: Iterable[Event]) -> list[int]:
    return sorted(event.sequence for event in events)
