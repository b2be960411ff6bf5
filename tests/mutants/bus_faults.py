"""Faults that the event bus's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Before, Replace

_SQLITE = "contract/test_sqlite.py::TestSqliteEventBus"
_MEMORY = "contract/test_memory.py::TestMemoryEventBus"

_fault = partial(Fault, part=Part.BUS)

BUS_FAULTS = (
    _fault(
        name="a recorded event wakes no reader",
        at="adapters.sqlite.events:SqliteEventLog.record",
        do=Argument("write()", "topics", None),
        caught_by=f"{_SQLITE}::test_a_waiting_consumer_gets_an_event_as_soon_as_it_is_recorded",
    ),
    _fault(
        name="a committed event wakes no reader",
        at="adapters.sqlite.commit:Commit.__init__",
        do=Replace("EVENTS", "Topic.PAUSES"),
        caught_by=f"{_SQLITE}::"
        "test_a_waiting_consumer_gets_an_event_as_soon_as_its_row_is_committed",
    ),
    _fault(
        name="an event between looking and waiting is missed",
        at="adapters.shared.waiters:Waiters._wait_for_change",
        do=Before("= _waiting", "await asyncio.sleep(0.001)"),
        caught_by=f"{_SQLITE}::test_no_event_is_missed_between_looking_and_waiting",
    ),
    _fault(
        name="an event wakes no other process",
        at="adapters.sqlite.notifier:Notifier._refresh_peers",
        do=Replace("discard()", "names.clear()"),
        caught_by="adapters/sqlite/test_processes.py::"
        "test_a_claim_is_woken_by_a_new_task_of_another_process",
    ),
    _fault(
        name="a late acknowledgement goes back in memory",
        at="adapters.memory.logs:MemoryEventBus.acknowledge",
        do=Replace("max()", "$1"),
        caught_by=f"{_MEMORY}::test_acknowledging_late_or_twice_does_not_go_back",
    ),
    _fault(
        name="a receipt in memory covers more than was delivered",
        at="adapters.memory.logs:MemoryEventBus._next",
        do=Argument("Delivery() str()", "receipt", "str($1 + 1)"),
        caught_by=f"{_MEMORY}::test_a_delivery_has_no_more_events_than_the_limit_and_all_come",
    ),
    _fault(
        name="an event between looking and waiting is missed in memory",
        at="adapters.shared.waiters:Waiters.wait_until",
        do=Before("_wait_for_change()", "await asyncio.sleep(0)"),
        caught_by=f"{_MEMORY}::test_no_event_is_missed_between_looking_and_waiting",
    ),
)
