"""Faults that the tests of retention must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_CONTRACT = "contract/test_sqlite.py::TestSqliteRetention"
_FILE = "adapters/sqlite/test_retention.py"
_SERVICE = "unit/services/test_retention.py"
_SQLITE = "adapters.sqlite.retention"
_AWS = "adapters.aws.retention:DynamoRetention"
_AWS_FILE = "aws/test_retention.py"
_ON_AWS = f"{_AWS_FILE}::TestDynamoRetention"

_fault = partial(Fault, part=Part.RETENTION)

RETENTION_FAULTS = (
    _fault(
        name="a job is removed without its output",
        at="testing.memory.retention:MemoryRetention.remove_jobs",
        do=Drop("remove()", nth=2),
        caught_by="contract/test_memory.py::TestMemoryRetention::"
        "test_nothing_of_a_removed_job_is_left",
    ),
    _fault(
        name="a job with a task in review or an open end is removed",
        at=f"{_SQLITE}:_ENDED",
        do=Text(" AND NOT EXISTS", " AND 1 OR NOT EXISTS"),
        caught_by=f"{_CONTRACT}::test_a_task_whose_end_is_not_recorded_keeps_its_job",
    ),
    _fault(
        name="a job with an open intent is removed",
        at=f"{_SQLITE}:_ENDED",
        do=Text("j.state > 0 AND ", ""),
        caught_by=f"{_CONTRACT}::test_what_can_still_run_has_not_ended",
    ),
    _fault(
        name="a job is removed although it was resumed after it was found",
        at=f"{_SQLITE}:_REMOVABLE",
        do=Text("{_ENDED} AND ", "?1 > 0 AND "),
        caught_by=f"{_CONTRACT}::test_of_a_resume_and_a_removal_one_is_refused",
    ),
    _fault(
        name="the number of the last job is used again",
        at=f"{_SQLITE}:SqliteRetention.remove_jobs",
        do=Condition("last", False),
        caught_by=f"{_FILE}::test_numbers_of_removed_jobs_and_positions_are_not_used_again",
    ),
    _fault(
        name="the last position of the feed is used again",
        at=f"{_SQLITE}:_trim_feed",
        do=Drop("discard()"),
        caught_by=f"{_CONTRACT}::"
        "test_a_follower_misses_no_event_after_the_latest_ones_were_removed",
    ),
    _fault(
        name="a row of the feed goes with the first of its jobs",
        at=f"{_SQLITE}:_trim_feed",
        do=Replace("any()", "all(transaction.value(sql, (no,)) for sql, no in subjects)"),
        caught_by=f"{_FILE}::test_a_row_of_the_feed_stays_with_the_last_of_its_jobs",
    ),
    _fault(
        name="rows of blobs go before their files",
        at=f"{_SQLITE}:SqliteRetention.remove_remains",
        do=Drop("_unlink()", nth=1),
        caught_by=f"{_FILE}::test_files_of_blobs_are_removed_also_after_a_crash_beside_the_commit",
    ),
    _fault(
        name="the file never shrinks",
        at=f"{_SQLITE}:SqliteRetention.remove_remains",
        do=Drop("_shrink()"),
        caught_by=f"{_FILE}::test_the_file_shrinks",
    ),
    _fault(
        name="a bulk submit ignores tombstones",
        at="adapters.sqlite.transaction:_CREATE_JOB",
        do=Text("WHERE NOT EXISTS (SELECT 1 FROM removed_jobs WHERE id = ?2)", "WHERE true"),
        caught_by=f"{_SERVICE}::test_a_request_id_is_refused_for_as_long_again_and_then_runs_again",
    ),
    _fault(
        name="late output of a removed job is stored",
        at="adapters.sqlite.output:SqliteOutputLog.append",
        do=Condition("REMOVED", False),
        caught_by=f"{_CONTRACT}::test_late_output_of_a_removed_job_is_not_stored",
    ),
    _fault(
        name="jobs of other tenants are pruned",
        at="services.retention:JobRetention._remove_some",
        do=Argument("ended_jobs()", "tenant", "None"),
        caught_by=f"{_SERVICE}::"
        "test_an_operator_removes_old_jobs_of_the_own_tenant_in_several_calls",
    ),
    _fault(
        name="a request id is forgotten with its job",
        at="services.retention:JobRetention._remove_some",
        do=Value("remember_until=", "now"),
        caught_by=f"{_SERVICE}::test_a_request_id_is_refused_for_as_long_again_and_then_runs_again",
    ),
    _fault(
        name="the last event of an entity without a row is removed",
        at=f"{_SQLITE}:_OLD_EVENTS",
        do=Text(" AND EXISTS", " AND 1 OR EXISTS"),
        caught_by=f"{_CONTRACT}::test_the_last_event_of_an_entity_continues_its_sequence",
    ),
    _fault(
        name="events without a job stay in the feed",
        at=f"{_SQLITE}:SqliteRetention.remove_other_events",
        do=Drop("_trim_feed()"),
        caught_by=f"{_FILE}::test_events_without_a_job_leave_nothing_but_the_last_of_each_entity",
    ),
    _fault(
        name="events without a job are never removed",
        at="services.retention:JobRetention.remove_expired",
        do=Replace("await _remove_other_events()", "0"),
        caught_by=f"{_SERVICE}::test_the_sweeper_removes_old_events_that_belong_to_no_job",
    ),
    _fault(
        name="on AWS a job is removed although it was resumed after it was read",
        at=f"{_AWS}._remove",
        do=Value("condition=", "'#v > :decided OR #v <= :decided'"),
        caught_by=f"{_AWS_FILE}::"
        "test_a_resume_between_the_decision_and_the_tombstone_keeps_the_job",
    ),
    _fault(
        name="on AWS a job is removed with a task whose end is not recorded",
        at=f"{_AWS}._has_ended",
        do=Condition(">=", True),
        caught_by=f"{_ON_AWS}::test_a_task_whose_end_is_not_recorded_keeps_its_job",
    ),
    _fault(
        name="on AWS a job with an open intent is removed",
        at=f"{_AWS}._has_ended",
        do=Condition("intents", False),
        caught_by=f"{_ON_AWS}::test_what_can_still_run_has_not_ended",
    ),
    _fault(
        name="on AWS what a process that died has left is not found",
        at=f"{_AWS}._remove",
        do=Argument("_due_key()", 0, "until"),
        caught_by=f"{_AWS_FILE}::test_a_removal_that_dies_at_any_write_is_finished_by_the_sweeper",
    ),
    _fault(
        name="on AWS DynamoDB may delete tombstones before their time",
        at="adapters.aws.retention:_TTL_SLACK",
        do=Value("=", "-timedelta(days=1)"),
        caught_by=f"{_AWS_FILE}::"
        "test_all_tombstones_of_a_job_have_one_time_and_those_of_tasks_expire",
    ),
    _fault(
        name="on AWS events of jobs expire by themselves",
        at="adapters.aws.events.event_log:DynamoEventLog._item",
        do=Condition("_WITH_ROWS", "self._retention is not None"),
        caught_by=f"{_AWS_FILE}::test_a_job_has_no_item_that_expires_before_it_is_removed",
    ),
    _fault(
        name="on AWS blobs of other jobs in the same listing are deleted",
        at="adapters.aws.retention:_has_prefix",
        do=Value("return", "number > 0"),
        caught_by=f"{_AWS_FILE}::test_blobs_of_jobs_are_found_along_one_listing",
    ),
    _fault(
        name="on AWS keys that a batch leaves over are forgotten",
        at=f"{_AWS}._delete_batch",
        do=Condition("request", True),
        caught_by=f"{_AWS_FILE}::test_keys_that_a_batch_leaves_over_are_deleted_again",
    ),
    _fault(
        name="on AWS late output of a removed job is stored",
        at="adapters.aws.output_log:DynamoOutputLog.append",
        do=Condition("_is_removed()", False),
        caught_by=f"{_ON_AWS}::test_late_output_of_a_removed_job_is_not_stored",
    ),
    _fault(
        name="on AWS what came late stays when the tombstone goes",
        at=f"{_AWS}._remove_rows",
        do=Condition("late", False),
        caught_by=f"{_AWS_FILE}::test_what_comes_late_goes_with_the_tombstone",
    ),
    _fault(
        name="on AWS events whose time is over are read until DynamoDB deletes them",
        at="adapters.aws.events.event_log:DynamoEventLog._read",
        do=Condition("<", False),
        caught_by=f"{_ON_AWS}::test_old_events_without_a_job_are_removed",
    ),
    _fault(
        name="what an operator removed is not cleaned up where jobs are kept",
        at="services.retention:JobRetention.remove_expired",
        do=Replace("await _remove_remains()", "0"),
        caught_by=f"{_SERVICE}::test_what_a_crash_between_the_two_steps_leaves_is_removed_later",
    ),
    _fault(
        name="on AWS a protected bucket keeps no earlier versions",
        at="adapters.aws.deploy.stacks.template:_parts",
        do=Argument("fill_file()", "versioning", "'Suspended'", nth=2),
        caught_by="aws/deploy/test_templates.py::"
        "test_a_protected_bucket_keeps_what_the_tables_can_be_restored_to",
    ),
    _fault(
        name="a job is removed without its output from a file",
        at=f"{_SQLITE}:_DELETES",
        do=Drop("'DELETE FROM output WHERE task >= ?2 AND task < ?3'"),
        caught_by=f"{_FILE}::test_only_one_row_of_each_order_is_left_when_all_jobs_are_gone",
    ),
    _fault(
        name="ended jobs are counted and not removed",
        at="services.retention:JobRetention.prune",
        do=Value("= step", "0", nth=2),
        caught_by="interfaces/test_cli_operate.py::test_ended_jobs_are_counted_and_removed",
    ),
)
