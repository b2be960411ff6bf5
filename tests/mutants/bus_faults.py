"""Faults that the event bus's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Before, Replace

_MEMORY = "contract/test_memory.py::TestMemoryEventBus"

_fault = partial(Fault, part=Part.BUS)

BUS_FAULTS = (
    _fault(
        name="a late acknowledgement goes back in memory",
        at="testing.memory.logs:MemoryEventBus.acknowledge",
        do=Replace("max()", "$1"),
        caught_by=f"{_MEMORY}::test_acknowledging_late_or_twice_does_not_go_back",
    ),
    _fault(
        name="a receipt in memory covers more than was delivered",
        at="testing.memory.logs:MemoryEventBus._next",
        do=Argument("Delivery() str()", "receipt", "str($1 + 1)"),
        caught_by=f"{_MEMORY}::test_a_delivery_has_no_more_events_than_the_limit_and_all_come",
    ),
    _fault(
        name="consumers in memory share one position",
        at="testing.memory.logs:MemoryEventBus._next",
        do=Replace("get() _positions", "max(self._positions.values(), default=0)"),
        caught_by=f"{_MEMORY}::test_consumers_do_not_take_events_from_each_other",
    ),
    _fault(
        name="a new consumer in memory starts at the end",
        at="testing.memory.logs:MemoryEventBus._next",
        do=Replace("get() _positions", "self._positions.get(consumer, len(self._store.events))"),
        caught_by=f"{_MEMORY}::test_a_new_consumer_starts_with_the_first_event",
    ),
    _fault(
        name="one refused event in memory holds up the rest",
        at="testing.memory.logs:MemoryEventBus.publish",
        do=After("append() refused", "return refused"),
        caught_by=f"{_MEMORY}::test_an_event_that_is_not_accepted_is_returned_and_delays_no_other",
    ),
    _fault(
        name="an event between looking and waiting is missed in memory",
        at="adapters.shared.waiters:Waiters.wait_until",
        do=Before("_wait_for_change()", "await asyncio.sleep(0)"),
        caught_by=f"{_MEMORY}::test_no_event_is_missed_between_looking_and_waiting",
    ),
)
