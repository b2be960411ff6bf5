"""Faults that the event log's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteEventLog"
_MEMORY = "contract/test_memory.py::TestMemoryEventLog"

_in_sqlite = partial(Fault, part=Part.EVENTS, file="adapters/sqlite/events.py")
_in_pages = partial(Fault, part=Part.EVENTS, file="adapters/sqlite/event_pages.py")
_in_memory = partial(Fault, part=Part.EVENTS, file="adapters/memory/events.py")
_in_store = partial(Fault, part=Part.EVENTS, file="adapters/memory/store.py")

EVENT_FAULTS = (
    _in_sqlite(
        name="another event in the same place is passed over",
        old="elif there[0] != row:",
        new="elif False:",
        caught_by=f"{_SQLITE}::"
        "test_another_event_in_the_same_place_is_refused_and_nothing_is_written",
    ),
    _in_sqlite(
        name="the same event twice is refused",
        old="elif there[0] != row:",
        new="else:",
        caught_by=f"{_SQLITE}::test_the_same_event_twice_is_one",
    ),
    _in_sqlite(
        name="an event's place does not know its tenant",
        old='" WHERE entity = ? AND sequence = ? AND tenant = ?"',
        new='" WHERE entity = ? AND sequence = ? AND ? IS NOT NULL"',
        caught_by=f"{_SQLITE}::test_one_place_in_two_tenants_is_two_places",
    ),
    _in_sqlite(
        name="the next place is read before the write",
        old="            last = rows(\n                connection,\n"
        '                "SELECT sequence, at_ms',
        new='            last = self._database.point(\n                "SELECT sequence, at_ms',
        caught_by=f"{_SQLITE}::test_many_who_append_at_once_get_a_place_each",
    ),
    _in_sqlite(
        name="two tenants share the places of a queue",
        old='"SELECT sequence, at_ms FROM events WHERE entity = ? AND tenant = ?"',
        new='"SELECT sequence, at_ms FROM events WHERE entity = ? AND ? IS NOT NULL"',
        caught_by=f"{_SQLITE}::test_one_name_in_two_tenants_is_two_entities",
    ),
    _in_sqlite(
        name="an appended event may be as old as the one before",
        old="at=next_moment(now, None if at_ms is None else moment_of(at_ms))",
        new="at=next_moment(now, None)",
        caught_by=f"{_SQLITE}::test_appended_events_are_strictly_later_than_those_before",
    ),
    _in_sqlite(
        name="history begins with the event already seen",
        old='" AND sequence > ? ORDER BY sequence LIMIT ?"',
        new='" AND sequence >= ? ORDER BY sequence LIMIT ?"',
        caught_by=f"{_SQLITE}::test_history_goes_on_after_a_sequence_up_to_the_limit",
    ),
    _in_sqlite(
        name="history in the order of arrival",
        old='" AND sequence > ? ORDER BY sequence LIMIT ?"',
        new='" AND sequence > ? ORDER BY position LIMIT ?"',
        caught_by=f"{_SQLITE}::test_events_are_recorded_in_any_order",
    ),
    _in_sqlite(
        name="history of every tenant",
        old='WHERE entity = ? AND tenant = ?"\n            " AND sequence >',
        new='WHERE entity = ? AND ? IS NOT NULL"\n            " AND sequence >',
        caught_by=f"{_SQLITE}::test_events_of_another_tenant_are_not_seen",
    ),
    _in_sqlite(
        name="the latest event is the last that arrived",
        old='" ORDER BY sequence DESC LIMIT 1",\n            (entity, tenant),\n        )\n'
        "        return",
        new='" ORDER BY position DESC LIMIT 1",\n            (entity, tenant),\n        )\n'
        "        return",
        caught_by=f"{_SQLITE}::test_the_latest_event_is_the_last_by_sequence",
    ),
    _in_pages(
        name="a query reads every tenant",
        old='"tenant = :tenant AND position > :after"',
        new='":tenant IS NOT NULL AND position > :after"',
        caught_by=f"{_SQLITE}::test_events_of_another_tenant_are_not_seen",
    ),
    _in_pages(
        name="a page of a query begins with the last of the one before",
        old='"tenant = :tenant AND position > :after"',
        new='"tenant = :tenant AND position >= :after"',
        caught_by=f"{_SQLITE}::test_the_pages_of_a_query_give_each_event_once_and_end",
    ),
    _in_sqlite(
        name="a page of a query leaves one out",
        old='cursor_to("events", found[limit - 1][0])',
        new='cursor_to("events", found[limit][0])',
        caught_by=f"{_SQLITE}::test_the_pages_of_a_query_give_each_event_once_and_end",
    ),
    _in_pages(
        name="a job's events with those of a longer name",
        old="entity >= 'TASK#' || :job || '_' AND",
        new="entity >= 'TASK#' || :job AND",
        caught_by=f"{_SQLITE}::test_a_jobs_events_are_its_own_and_those_of_its_tasks",
    ),
    _in_pages(
        name="a query by the time of the event",
        old='_PAGE = "ORDER BY position LIMIT :limit"',
        new='_PAGE = "ORDER BY at_ms LIMIT :limit"',
        caught_by=f"{_SQLITE}::test_events_come_in_the_order_in_which_they_were_recorded",
    ),
    _in_sqlite(
        name="the reference to large fields is dropped",
        old="overflow=overflow,",
        new="overflow=None,",
        caught_by=f"{_SQLITE}::test_an_event_whose_large_fields_are_elsewhere_keeps_the_reference",
    ),
    _in_memory(
        name="a query in memory reads every tenant",
        old="if event.tenant == tenant\n",
        new="if True\n",
        caught_by=f"{_MEMORY}::test_events_of_another_tenant_are_not_seen",
    ),
    _in_memory(
        name="history in memory begins with the event already seen",
        old="if event.sequence > after]",
        new="if event.sequence >= after]",
        caught_by=f"{_MEMORY}::test_history_goes_on_after_a_sequence_up_to_the_limit",
    ),
    _in_store(
        name="half of a refused record stays in memory",
        old="                fresh[place] = event\n",
        new="                fresh[place] = event\n                self.record([event])\n",
        caught_by=f"{_MEMORY}::"
        "test_another_event_in_the_same_place_is_refused_and_nothing_is_written",
    ),
)
