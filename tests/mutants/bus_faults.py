"""Faults that the event bus's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteEventBus"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteEventBusInFour"
_MEMORY = "contract/test_memory.py::TestMemoryEventBus"

_fault = partial(Fault, part=Part.BUS)
_in_sqlite = partial(_fault, file="adapters/sqlite/events.py")
_in_memory = partial(_fault, file="adapters/memory/events.py")

BUS_FAULTS = (
    _in_sqlite(
        name="a late acknowledgement goes back",
        old="position = max(position, excluded.position)",
        new="position = excluded.position",
        caught_by=f"{_SQLITE}::test_acknowledging_late_or_twice_does_not_go_back",
    ),
    _in_sqlite(
        name="an acknowledgement is forgotten",
        old="position = max(position, excluded.position)",
        new="position = position",
        caught_by=f"{_SQLITE}::test_acknowledging_late_or_twice_does_not_go_back",
    ),
    _in_sqlite(
        name="a receipt covers more than was delivered",
        old="receipt = found[-1][0] if len(found) == limit else last",
        new="receipt = last",
        caught_by=f"{_SQLITE}::test_a_delivery_has_no_more_events_than_the_limit_and_all_come",
    ),
    _in_sqlite(
        name="a receipt covers one event less",
        old="receipt = found[-1][0] if len(found) == limit else last",
        new="receipt = found[-1][0] - 1",
        caught_by=f"{_SQLITE}::test_an_acknowledged_delivery_does_not_come_again",
    ),
    _in_sqlite(
        name="asking for one type passes over another",
        old="asked = (consumer, *types)",
        new="asked = (consumer,)",
        caught_by=f"{_SQLITE}::test_asking_for_one_type_passes_over_no_event_of_another",
    ),
    _in_sqlite(
        name="what was handed out counts as dealt with",
        old="        return Delivery(events=tuple(_event(row[1:]) for row in found)",
        new="        self._passed[asked] = receipt\n"
        "        return Delivery(events=tuple(_event(row[1:]) for row in found)",
        caught_by=f"{_SQLITE}::test_a_delivery_comes_again_until_it_is_acknowledged",
    ),
    _in_sqlite(
        name="consumers share one cursor",
        old='"SELECT position FROM cursors WHERE consumer = ?", (consumer,)',
        new='"SELECT max(position) FROM cursors HAVING count(*)", ()',
        caught_by=f"{_SQLITE}::test_consumers_do_not_take_events_from_each_other",
    ),
    _in_sqlite(
        name="a new consumer starts at the end",
        old="after = max(saved[0][0] if saved else 0,",
        new="after = max(saved[0][0] if saved else 1 << 40,",
        caught_by=f"{_SQLITE}::test_a_new_consumer_starts_with_the_first_event",
    ),
    _in_sqlite(
        name="a recorded event rings no bell",
        old="\n\n        await self._database.write(work, topics=(Topic.EVENTS,))",
        new="\n\n        await self._database.write(work)",
        caught_by=f"{_SQLITE}::test_a_waiting_consumer_gets_an_event_as_soon_as_it_is_recorded",
    ),
    _fault(
        name="a committed event rings no bell",
        file="adapters/sqlite/commit.py",
        old="event_values(event), Topic.EVENTS)",
        new="event_values(event), Topic.NUDGE)",
        caught_by=f"{_SQLITE}::"
        "test_a_waiting_consumer_gets_an_event_as_soon_as_its_row_is_committed",
    ),
    _in_sqlite(
        name="one refused event holds up the rest",
        old="refused.append(event)",
        new="return [event]",
        caught_by=f"{_SQLITE}::test_an_event_that_is_not_accepted_is_named_and_holds_up_no_other",
    ),
    _fault(
        name="an event between looking and waiting is missed",
        file="adapters/sqlite/database.py",
        old="        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        new="        await asyncio.sleep(0.001)\n"
        "        heard.clear()\n"
        "        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        caught_by=f"{_SQLITE}::test_no_event_is_missed_between_looking_and_waiting",
    ),
    _fault(
        name="an event wakes no other process",
        file="adapters/sqlite/bells.py",
        old="names.discard(self._name)",
        new="names.clear()",
        caught_by=f"{_FOUR}::test_a_waiting_consumer_gets_an_event_as_soon_as_it_is_recorded",
    ),
    _in_memory(
        name="a late acknowledgement goes back in memory",
        old="max(int(receipt), self._dealt_with.get(consumer, 0))",
        new="int(receipt)",
        caught_by=f"{_MEMORY}::test_acknowledging_late_or_twice_does_not_go_back",
    ),
    _in_memory(
        name="a receipt in memory covers more than was delivered",
        old="return Delivery(events=tuple(events), receipt=str(place))",
        new="return Delivery(events=tuple(events), receipt=str(place + 1))",
        caught_by=f"{_MEMORY}::test_a_delivery_has_no_more_events_than_the_limit_and_all_come",
    ),
    _fault(
        name="an event between looking and waiting is missed in memory",
        file="adapters/memory/waiting.py",
        old="            await self._change(within=min(pauses, default=None))\n",
        new="            await asyncio.sleep(0)\n"
        "            await self._change(within=min(pauses, default=None))\n",
        caught_by=f"{_MEMORY}::test_no_event_is_missed_between_looking_and_waiting",
    ),
)
