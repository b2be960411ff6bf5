"""Faults that the tests of what attempts leave behind must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_ARTIFACTS = "unit/services/test_artifacts.py"
_WORKER = "unit/services/test_worker_artifacts.py"
_COPIES = "unit/runners/test_artifact_copies.py"

_fault = partial(Fault, part=Part.ARTIFACTS)
_in_service = partial(_fault, file="services/artifacts.py")
_in_attempt = partial(_fault, file="services/worker/attempt.py")
_in_files = partial(_fault, file="services/worker/files.py")

ARTIFACT_FAULTS = (
    _in_service(
        name="a link may lead anywhere",
        old='if real != top and not real.startswith(os.path.join(top, "")):',
        new="if False:",
        caught_by=f"{_ARTIFACTS}::test_a_link_is_followed_only_within_its_part_of_the_folder",
    ),
    _in_service(
        name="a link may lead to a folder whose name begins alike",
        old='real.startswith(os.path.join(top, ""))',
        new="real.startswith(top)",
        caught_by=f"{_ARTIFACTS}::test_a_link_to_a_folder_whose_name_only_begins_alike_leads_out",
    ),
    _in_service(
        name="what became a link meanwhile is followed",
        old="os.O_RDONLY | os.O_NOFOLLOW |",
        new="os.O_RDONLY |",
        caught_by=f"{_ARTIFACTS}::"
        "test_a_file_that_became_a_link_since_it_was_looked_at_is_not_followed",
    ),
    _in_service(
        name="folders behind links are looked through",
        old="if os.path.islink(path) or not os.path.isdir(path):",
        new="if not os.path.isdir(path):",
        caught_by=f"{_ARTIFACTS}::test_a_folder_that_links_back_to_itself_ends",
    ),
    _in_service(
        name="any number of files is kept",
        old="elif len(found.files) >= policy.limit_files:",
        new="elif False:",
        caught_by=f"{_ARTIFACTS}::test_files_beyond_the_number_are_left_out_and_told",
    ),
    _in_service(
        name="files are counted against the bytes one by one",
        old="        found.bytes += about.st_size\n",
        new="",
        caught_by=f"{_ARTIFACTS}::"
        "test_files_beyond_the_bytes_are_left_out_and_smaller_ones_are_not",
    ),
    _in_service(
        name="folders are looked through without end",
        old="            budget -= 1\n",
        new="",
        caught_by=f"{_ARTIFACTS}::test_many_small_folders_are_cut_short_as_one_large_is",
    ),
    _in_service(
        name="a pipe is taken for a file",
        old="if not stat.S_ISREG(about.st_mode):",
        new="if False:",
        caught_by=f"{_ARTIFACTS}::test_what_is_no_file_is_left_out",
    ),
    _in_service(
        name="a summary that was written is replaced",
        old="if summaries and SUMMARY not in puts:",
        new="if summaries:",
        caught_by=f"{_ARTIFACTS}::test_a_summary_that_was_written_stands",
    ),
    _in_service(
        name="trouble of the store is kept quiet",
        old='                found.leave_out(left, "the store could not be reached")\n',
        new="                pass\n",
        caught_by=f"{_ARTIFACTS}::test_trouble_of_the_store_leaves_out_the_rest_and_says_so",
    ),
    _in_files(
        name="files are not kept",
        old="                note = await keeping\n",
        new="                note = None\n",
        caught_by=f"{_WORKER}::test_what_is_left_out_is_the_last_line_of_the_output",
    ),
    _in_attempt(
        name="files come after the outcome",
        old="                await self._keep_files(child)\n",
        new="                asyncio.ensure_future(self._keep_files(child))\n",
        caught_by=f"{_WORKER}::test_files_are_stored_before_the_outcome_and_the_folder_goes_after",
    ),
    _in_files(
        name="files may take as long as the outcome may",
        old="patience = tools.lease.lasts / 3",
        new="patience = tools.lease.lasts * 3",
        caught_by=f"{_WORKER}::test_a_long_outage_of_the_store_costs_the_files_and_not_the_outcome",
    ),
    _in_attempt(
        name="the time for files is the attempt's",
        old="        self._outcomes.child_ended()\n",
        new="",
        caught_by=f"{_WORKER}::test_the_time_to_store_files_is_not_the_attempt_s",
    ),
    _in_attempt(
        name="the folder goes before its files are kept",
        old="        self._outcomes.child_ended()\n",
        new="        self._outcomes.child_ended()\n        await child.close()\n",
        caught_by=f"{_WORKER}::test_files_are_stored_before_the_outcome_and_the_folder_goes_after",
    ),
)
