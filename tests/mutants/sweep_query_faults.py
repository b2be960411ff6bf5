"""Faults in what a ledger lists for the sweeper and the health check."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Condition, Drop, Operator, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_FAILED = "adapters/sqlite/test_failed_tasks.py"

_fault = partial(Fault, part=Part.LEDGER)

SWEEP_QUERY_FAULTS = (
    _fault(
        name="an end is unrecorded before its time",
        at="adapters.sqlite.ledger:SqliteLedger.unrecorded_ends",
        do=Text("t.finished_ms <= ?", "t.finished_ms <= ? + 1000"),
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_from_its_moment_on",
    ),
    _fault(
        name="an end is unrecorded a tick too late",
        at="adapters.sqlite.ledger:SqliteLedger.unrecorded_ends",
        do=Text("t.finished_ms <= ?", "t.finished_ms < ?"),
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_from_its_moment_on",
    ),
    _fault(
        name="a listing continues with the next job",
        at="adapters.sqlite.ledger:_after",
        do=Operator("> split_task_id()", ">="),
        caught_by=f"{_SQLITE}::"
        "test_unrecorded_ends_come_by_job_and_id_up_to_the_limit_and_on_from_there",
    ),
    _fault(
        name="a task that awaits nothing that completed is sent on",
        at="adapters.sqlite.ledger:SqliteLedger.unnotified_dependents",
        do=Condition("unpack_numbers()", True),
        caught_by=f"{_SQLITE}::test_a_task_that_was_notified_of_its_parents_is_not_found",
    ),
    _fault(
        name="of many waiting tasks only the first are looked at",
        at="adapters.sqlite.ledger:SqliteLedger.unnotified_dependents",
        do=Replace("if _TASKS_PER_PAGE", "break"),
        caught_by="adapters/sqlite/test_sweeping.py::test_one_waiting_task_of_very_many_is_found",
    ),
    _fault(
        name="pauses between messages do not double in memory",
        at="testing.memory.ledger:MemoryLedger.unqueued_tasks",
        do=Replace("<= enqueued_at", "row.enqueued_at <= due_by"),
        caught_by=f"{_MEMORY}::"
        "test_a_task_is_unqueued_when_it_was_last_enqueued_as_long_ago_as_it_had_been_due",
    ),
    _fault(
        name="ends that are recorded are found again in memory",
        at="testing.memory.ledger:MemoryLedger.unrecorded_ends",
        do=Drop("not in number"),
        caught_by=f"{_MEMORY}::test_an_end_is_unrecorded_until_its_job_knows_of_it",
    ),
    _fault(
        name="a task that awaits nothing that completed is sent on in memory",
        at="testing.memory.ledger:MemoryLedger.unnotified_dependents",
        do=Drop("awaits"),
        caught_by=f"{_MEMORY}::test_a_task_that_was_notified_of_its_parents_is_not_found",
    ),
    _fault(
        name="the first to fail come before the last",
        at="adapters.sqlite.ledger:_FAILED_TASKS",
        do=Text("t.finished_ms DESC", "t.finished_ms"),
        caught_by=f"{_SQLITE}::test_the_last_to_fail_comes_first_whenever_it_was_created",
    ),
    _fault(
        name="the next tenant is looked for task by task",
        at="adapters.sqlite.ledger:_NEXT_TENANT",
        do=Text("min(tenant)", "min(tenant || '')"),
        caught_by=f"{_FAILED}::test_of_very_many_only_those_that_are_asked_for_are_looked_at",
    ),
    _fault(
        name="a damaged row hides all that failed",
        at="adapters.sqlite.ledger:_FAILED_TASKS",
        do=Text(
            "iif(json_valid(t.rest), t.rest ->> '$.failure.category', NULL)",
            "t.rest ->> '$.failure.category'",
        ),
        caught_by=f"{_FAILED}::"
        "test_a_damaged_row_and_a_category_of_a_newer_version_are_failures_of_no_known_kind",
    ),
    _fault(
        name="what failed for another tenant is among ours",
        at="testing.memory.ledger:MemoryLedger.failed_tasks",
        do=Drop("== tenant"),
        caught_by=f"{_MEMORY}::test_failed_tasks_of_another_tenant_are_not_among_them",
    ),
    _fault(
        name="a tenant whose tasks all ended well has failed ones",
        at="testing.memory.ledger:MemoryLedger.failed_tenants",
        do=Condition("state", "$1.terminal"),
        caught_by=f"{_MEMORY}::"
        "test_a_task_that_ended_otherwise_or_has_another_round_has_not_failed",
    ),
)
