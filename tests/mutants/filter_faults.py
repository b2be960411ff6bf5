"""Faults in the filters of listings that the ledger's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_LISTING = "adapters/sqlite/test_listing.py"

_fault = partial(Fault, part=Part.LEDGER)
_in_ledger = partial(_fault, file="adapters/sqlite/ledger.py")
_in_listings = partial(_fault, file="adapters/memory/listings.py")

FILTER_FAULTS = (
    _in_ledger(
        name="what was created at the end of a span is in it",
        old='place = min(place, (codec.to_us(created_before), ""))',
        new='place = min(place, (codec.to_us(created_before) + 1, ""))',
        caught_by=f"{_SQLITE}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _in_ledger(
        name="what was created at the beginning of a span is not in it",
        old="AND created_us >= ?5",
        new="AND created_us > ?5",
        caught_by=f"{_SQLITE}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _in_ledger(
        name="each page begins at the end of the span",
        old='place = min(place, (codec.to_us(created_before), ""))',
        new='place = (codec.to_us(created_before), "")',
        caught_by=f"{_SQLITE}::test_a_cursor_goes_on_within_its_span_while_jobs_are_added",
    ),
    _in_ledger(
        name="an empty name is no name",
        old="named=name is not None)",
        new="named=bool(name))",
        caught_by=f"{_SQLITE}::test_a_name_is_the_whole_name_letter_by_letter",
    ),
    _in_ledger(
        name="of one name only the running jobs are listed",
        old="states = JobState if name is not None and state is None else (state,)",
        new="states = (state or (JobState.RUNNING if name is not None else None),)",
        caught_by=f"{_SQLITE}::test_jobs_of_one_name_are_listed_newest_first_whatever_their_states",
    ),
    _in_ledger(
        name="with a name the state does not matter",
        old="states = JobState if name is not None and state is None else (state,)",
        new="states = JobState if name is not None else (state,)",
        caught_by=f"{_SQLITE}::test_state_and_name_must_both_apply",
    ),
    _in_ledger(
        name="a page is said to end with the first of the next",
        old="found[limit - 1][-2:]",
        new="found[limit][-2:]",
        caught_by=f"{_SQLITE}::test_the_pages_of_one_state_and_name_give_each_once_and_end",
    ),
    _in_ledger(
        name="rows of every state are passed over to find those of one",
        old=" INDEXED BY {table}_by_{index}",
        new="",
        caught_by=f"{_LISTING}::test_jobs_by_every_filter_are_walks_along_an_index",
    ),
    _fault(
        name="the name of a job is not kept for its listing",
        file="adapters/sqlite/commit.py",
        old="created, row.spec.name, *values)",
        new="created, None, *values)",
        caught_by=f"{_SQLITE}::test_a_name_is_the_whole_name_letter_by_letter",
    ),
    _in_listings(
        name="what was created at the end of a span is in it in memory",
        old="row.spec.created_at < created_before",
        new="row.spec.created_at <= created_before",
        caught_by=f"{_MEMORY}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _in_listings(
        name="what was created at the beginning of a span is not in it in memory",
        old="row.spec.created_at >= created_from",
        new="row.spec.created_at > created_from",
        caught_by=f"{_MEMORY}::test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not",
    ),
    _in_listings(
        name="an empty name is no name in memory",
        old="(name is None or row.spec.name == name)",
        new="(not name or row.spec.name == name)",
        caught_by=f"{_MEMORY}::test_a_job_without_a_name_has_none_of_the_names",
    ),
)
