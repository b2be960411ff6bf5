"""Faults in the filters of listings that the ledger's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Drop, Operator, Replace, Text, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_LISTING = "adapters/sqlite/test_listing.py"

_fault = partial(Fault, part=Part.LEDGER)

FILTER_FAULTS = (
    _fault(
        name="what was created at the end of a span is in it",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Argument("min()", 1, "(codec.to_us(created_before) + 1, 0)"),
        caught_by=f"{_SQLITE}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _fault(
        name="what was created at the beginning of a span is not in it",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Text("created_us >= ?4", "created_us > ?4"),
        caught_by=f"{_SQLITE}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _fault(
        name="each page begins at the end of the span",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Replace("min()", "$2"),
        caught_by=f"{_SQLITE}::test_a_cursor_goes_on_within_its_span_while_jobs_are_added",
    ),
    _fault(
        name="an empty name is no name",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Replace("get() 'name'", "($0 or None)"),
        caught_by=f"{_SQLITE}::test_a_name_is_the_whole_name_letter_by_letter",
    ),
    _fault(
        name="of one name only the running jobs are listed",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Value("= JOB_STATES", "$0 if name is None or state else JOB_STATES[:1]"),
        caught_by=f"{_SQLITE}::test_jobs_of_one_name_in_any_state_are_listed_newest_first",
    ),
    _fault(
        name="with a name the state does not matter",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Value("= JOB_STATES", "$0 if name is None else JOB_STATES"),
        caught_by=f"{_SQLITE}::test_state_and_name_must_both_apply",
    ),
    _fault(
        name="the cursor of a page names the first item of the next",
        at="adapters.sqlite.ledger:SqliteLedger._page.scan",
        do=Drop("1", nth=2),
        caught_by=f"{_SQLITE}::test_the_pages_of_one_state_and_name_give_each_once_and_end",
    ),
    _fault(
        name="jobs of every name are passed over to find those of one",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Text("INDEXED BY {index} WHERE", "WHERE"),
        caught_by=f"{_LISTING}::test_jobs_of_a_name_are_found_by_it_also_with_statistics_of_other_days",
    ),
    _fault(
        name="the name of a job is not kept for its listing",
        at="adapters.sqlite.transaction:StoreTransaction.job_spec_values",
        do=Replace("ternary name", "None"),
        caught_by=f"{_SQLITE}::test_a_name_is_the_whole_name_letter_by_letter",
    ),
    _fault(
        name="what was created at the end of a span is in it in memory",
        at="testing.memory.ledger:MemoryLedger.list_jobs",
        do=Operator("< created_at", "<="),
        caught_by=f"{_MEMORY}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _fault(
        name="what was created at the beginning of a span is not in it in memory",
        at="testing.memory.ledger:MemoryLedger.list_jobs",
        do=Operator(">= created_at", ">"),
        caught_by=f"{_MEMORY}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _fault(
        name="an empty name is no name in memory",
        at="testing.memory.ledger:MemoryLedger.list_jobs",
        do=Replace("is name", "not $1"),
        caught_by=f"{_MEMORY}::test_a_job_without_a_name_has_none_of_the_names",
    ),
)
