"""Faults that the event log's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Operator, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteEventLog"
_MEMORY = "contract/test_memory.py::TestMemoryEventLog"

_fault = partial(Fault, part=Part.EVENTS)

EVENT_FAULTS = (
    _fault(
        name="a health check is one event of any size",
        at="core.health:HealthReport.events",
        do=Condition("<=", True),
        caught_by="unit/services/test_health.py"
        "::test_a_check_of_many_tasks_is_several_events_that_are_read_as_one",
    ),
    _fault(
        name="the next place is read before the write",
        at="adapters.sqlite.events:SqliteEventLog.append.work",
        do=Replace("select()", "self._database.point($1, $2)"),
        caught_by=f"{_SQLITE}::test_concurrent_appends_get_a_sequence_each",
    ),
    _fault(
        name="two tenants share the places of a queue",
        at="adapters.sqlite.events:SqliteEventLog.append.work",
        do=Text("tenant = ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_one_name_in_two_tenants_is_two_entities",
    ),
    _fault(
        name="an appended event may be as old as the one before",
        at="adapters.sqlite.events:SqliteEventLog.append.work",
        do=Argument("next_event()", 2, "None"),
        caught_by=f"{_SQLITE}::test_appended_events_are_strictly_later_than_those_before",
    ),
    _fault(
        name="history begins with the event already seen",
        at="adapters.sqlite.events:SqliteEventLog.history",
        do=Operator("> after", ">="),
        caught_by=f"{_SQLITE}::test_history_goes_on_after_a_sequence_up_to_the_limit",
    ),
    _fault(
        name="history of every tenant",
        at="adapters.sqlite.events:FeedReader.of_entity",
        do=(Text("AND tenant = ?", "AND ? IS NOT NULL"), Drop("== tenant")),
        caught_by=f"{_SQLITE}::test_events_of_another_tenant_are_not_seen",
    ),
    _fault(
        name="a page of a query begins with the last of the one before",
        at="adapters.sqlite.events:FeedReader.along_feed",
        do=Operator("<= skip", "<"),
        caught_by=f"{_SQLITE}::test_the_pages_of_a_query_give_each_event_once_and_end",
    ),
    _fault(
        name="a page of a query leaves one out",
        at="adapters.sqlite.events:SqliteEventLog.query",
        do=Argument("_cursor()", 0, "matches[limit][0]"),
        caught_by=f"{_SQLITE}::test_the_pages_of_a_query_give_each_event_once_and_end",
    ),
    _fault(
        name="a job's events with those of a longer name",
        at="adapters.sqlite.events:EventQuery.matches",
        do=Replace("== split_task_id()", "event.entity_id.startswith(job_id)"),
        caught_by=f"{_SQLITE}::test_only_events_that_fit_every_condition_are_found",
    ),
    _fault(
        name="a query in memory reads every tenant",
        at="testing.memory.logs:MemoryEventLog.query",
        do=Replace("== tenant", "True"),
        caught_by=f"{_MEMORY}::test_events_of_another_tenant_are_not_seen",
    ),
    _fault(
        name="history in memory begins with the event already seen",
        at="testing.memory.logs:MemoryEventLog.history",
        do=Operator("> sequence", ">="),
        caught_by=f"{_MEMORY}::test_history_goes_on_after_a_sequence_up_to_the_limit",
    ),
    _fault(
        name="an event of an earlier sender is refused",
        at="core.events.codec:from_wire",
        do=Argument("body_from_properties()", 2, "{}"),
        caught_by="unit/core/test_event_wire.py::"
        "test_every_example_of_the_earlier_interface_is_read",
    ),
    _fault(
        name="an activity of an unknown type is passed on",
        at="execution.host.report_decoder",
        do=Replace("ternary _ACTIVITIES", "str(kind)"),
        caught_by="execution/test_report_decoder.py::"
        "test_an_activity_of_an_unknown_type_is_waiting",
    ),
    _fault(
        name="an undelivered event is not discarded",
        at="services.event_delivery:UndeliveredEvents.discard",
        do=Drop("delete()"),
        caught_by="unit/services/test_undelivered_events.py::"
        "test_a_discarded_event_is_deleted_and_the_others_stay",
    ),
)
