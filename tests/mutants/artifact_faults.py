"""Faults that the tests of what attempts leave behind must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Condition, Drop, Operator, Replace, Value

_ARTIFACTS = "unit/services/test_artifacts.py"
_WORKER = "unit/services/test_worker_artifacts.py"
_COPIES = "unit/runners/test_artifact_copies.py"

_fault = partial(Fault, part=Part.ARTIFACTS)

ARTIFACT_FAULTS = (
    _fault(
        name="a link may lead anywhere",
        at="services.worker.artifacts:_add_file",
        do=Condition("startswith()", False),
        caught_by=f"{_ARTIFACTS}::test_a_link_is_followed_only_within_its_part_of_the_folder",
    ),
    _fault(
        name="a link may lead to a folder whose name begins alike",
        at="services.worker.artifacts:_add_file",
        do=Argument("startswith()", 0, "$1"),
        caught_by=f"{_ARTIFACTS}::test_a_link_to_a_folder_whose_name_only_begins_alike_leads_out",
    ),
    _fault(
        name="what became a link meanwhile is followed",
        at="services.worker.artifacts:_open",
        do=Drop("O_NOFOLLOW"),
        caught_by=f"{_ARTIFACTS}::"
        "test_a_file_that_became_a_link_since_it_was_looked_at_is_not_followed",
    ),
    _fault(
        name="folders behind links are looked through",
        at="services.worker.artifacts:_entries",
        do=Drop("islink()"),
        caught_by=f"{_ARTIFACTS}::test_a_folder_that_links_back_to_itself_ends",
    ),
    _fault(
        name="any number of files is kept",
        at="services.worker.artifacts:_add_file",
        do=Condition("len()", False),
        caught_by=f"{_ARTIFACTS}::test_files_beyond_the_number_are_skipped_and_named",
    ),
    _fault(
        name="files are counted against the bytes one by one",
        at="services.worker.artifacts:_add_file",
        do=Drop("+= bytes"),
        caught_by=f"{_ARTIFACTS}::"
        "test_files_beyond_the_bytes_are_left_out_and_smaller_ones_are_not",
    ),
    _fault(
        name="folders are looked through without end",
        at="services.worker.artifacts:_scan_folder",
        do=Drop("-="),
        caught_by=f"{_ARTIFACTS}::test_many_small_folders_are_cut_short_as_one_large_is",
    ),
    _fault(
        name="a pipe is taken for a file",
        at="services.worker.artifacts:_add_file",
        do=Condition("S_ISREG()", False),
        caught_by=f"{_ARTIFACTS}::test_what_is_no_file_is_left_out",
    ),
    _fault(
        name="a summary that was written is replaced",
        at="services.worker.artifacts:AttemptFiles._store",
        do=Drop("not in SUMMARY"),
        caught_by=f"{_ARTIFACTS}::test_a_written_summary_is_not_replaced",
    ),
    _fault(
        name="an error of the store is hidden",
        at="services.worker.artifacts:AttemptFiles._upload_all",
        do=Drop("skip() left"),
        caught_by=f"{_ARTIFACTS}::test_an_unavailable_store_skips_the_other_files_and_names_them",
    ),
    _fault(
        name="files are not kept",
        at="services.worker.artifacts:AttemptFiles.store",
        do=Value("= await", "None"),
        caught_by=f"{_WORKER}::test_what_is_left_out_is_the_last_line_of_the_output",
    ),
    _fault(
        name="files come after the outcome",
        at="services.worker.attempts:Attempts._follow",
        do=Replace("await store_files()", "asyncio.ensure_future($1)"),
        caught_by=f"{_WORKER}::test_files_are_stored_before_the_outcome_and_the_folder_goes_after",
    ),
    _fault(
        name="files may take as long as the outcome may",
        at="services.worker.artifacts:AttemptFiles._upload_all",
        do=Operator("/ duration", "*"),
        caught_by=f"{_WORKER}::test_a_long_outage_of_the_store_costs_the_files_and_not_the_outcome",
    ),
    _fault(
        name="the time for files is the attempt's",
        at="services.worker.attempts:Attempts._follow",
        do=Value(
            "return duration",
            "(self._clock.elapsed() - attempt.claimed_at_ns // 1000 * MICROSECOND, result)",
        ),
        caught_by=f"{_WORKER}::test_the_time_to_store_files_is_not_the_attempt_s",
    ),
    _fault(
        name="the folder goes before its files are kept",
        at="services.worker.attempts:Attempts._follow",
        do=After("= duration", "await child.close()"),
        caught_by=f"{_WORKER}::test_files_are_stored_before_the_outcome_and_the_folder_goes_after",
    ),
    _fault(
        name="only what a task stores is among its files",
        at="services.spill:derived_files",
        do=Condition("attempt", True),
        caught_by="interfaces/test_application_rules.py::"
        "test_every_ended_task_has_a_result_file_and_a_summary_without_storing_them",
    ),
    _fault(
        name="a running task has the files of one that ended",
        at="services.spill:derived_files",
        do=Condition("attempt", "row.attempt == 0"),
        caught_by="interfaces/test_application_rules.py::"
        "test_a_task_that_has_not_ended_has_no_such_files",
    ),
)
