"""Faults in what a ledger tells the sweeper and the health check, and in what it remembers."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_KNOWN = "adapters/sqlite/test_known.py"
_FAILED = "adapters/sqlite/test_failed.py"

_fault = partial(Fault, part=Part.LEDGER)
_in_ledger = partial(_fault, file="adapters/sqlite/ledger.py")
_in_overlooked = partial(_fault, file="adapters/sqlite/overlooked.py")
_in_failed = partial(_fault, file="adapters/sqlite/failed.py")
_in_known = partial(_fault, file="adapters/sqlite/known.py")
_in_turnstile = partial(_fault, file="adapters/sqlite/turnstile.py")
_in_memory = partial(_fault, file="adapters/memory/ledger.py")

OVERLOOKED_FAULTS = (
    _in_ledger(
        name="pauses between rings do not double",
        old="2 * rung_us - due_us <= ?",
        new="rung_us <= ?",
        caught_by=f"{_SQLITE}::"
        "test_a_task_is_unrung_when_its_last_ring_is_as_long_ago_as_it_had_been_due",
    ),
    _in_ledger(
        name="a task that has a message is unrung",
        old="NOT EXISTS (SELECT 1 FROM messages",
        new="EXISTS (SELECT 1) OR NOT EXISTS (SELECT 1 FROM messages",
        caught_by=f"{_SQLITE}::test_a_task_that_was_rung_again_is_not_unrung",
    ),
    _in_overlooked(
        name="an end is unrecorded before its time",
        old="finished_us <= ? AND id > ?",
        new="finished_us <= ? + 1000000 AND id > ?",
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_from_its_moment_on",
    ),
    _in_overlooked(
        name="an end is unrecorded a tick too late",
        old="finished_us <= ? AND id > ?",
        new="finished_us < ? AND id > ?",
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_from_its_moment_on",
    ),
    _in_overlooked(
        name="ends that are recorded are found again",
        old="if number not in known",
        new="if True",
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_until_its_job_knows_of_it",
    ),
    _in_overlooked(
        name="jobs with ends are found only if they know of none",
        old="AND ended <",
        new="AND ended = 0 AND ended <",
        caught_by=f"{_SQLITE}::test_an_end_is_unrecorded_until_its_job_knows_of_it",
    ),
    _in_overlooked(
        name="only the first jobs are looked at",
        old="first = page[-1][0] if len(page) > _JOBS_AT_ONCE else end",
        new="first = _BEYOND_ALL",
        caught_by=f"{_SQLITE}::test_unrecorded_ends_are_found_among_however_many_jobs",
    ),
    _in_overlooked(
        name="the last job of a page is passed over",
        old="for job_id, asked in page[:_JOBS_AT_ONCE]",
        new="for job_id, asked in page[:_JOBS_AT_ONCE - 1]",
        caught_by=f"{_SQLITE}::test_unrecorded_ends_are_found_among_however_many_jobs",
    ),
    _in_overlooked(
        name="a listing goes on with the job after",
        old="after if job_id == begun else",
        new='"~" if job_id == begun else',
        caught_by=f"{_SQLITE}::"
        "test_unrecorded_ends_come_by_job_and_id_up_to_the_limit_and_on_from_there",
    ),
    _in_overlooked(
        name="a task that awaits nothing that completed is sent on",
        old="if NumberSet.from_text(awaits) & completed",
        new="if completed",
        caught_by=f"{_SQLITE}::test_a_task_that_was_told_of_its_parents_is_not_found",
    ),
    _in_overlooked(
        name="of many waiting tasks only the first are looked at",
        old="            if len(waiters) < _TASKS_AT_ONCE:\n                break\n",
        new="            break\n",
        caught_by="adapters/sqlite/test_sweeping.py::test_one_waiting_task_of_very_many_is_found",
    ),
    _in_known(
        name="any number of rows is remembered",
        old="if len(rows) > self._limit:",
        new="if False:",
        caught_by=f"{_KNOWN}::test_the_row_that_was_kept_longest_ago_makes_room",
    ),
    _in_known(
        name="a row that is kept again stays the oldest",
        old="        rows.pop(row.id, None)\n        if",
        new="        if",
        caught_by=f"{_KNOWN}::test_the_row_that_was_kept_longest_ago_makes_room",
    ),
    _in_known(
        name="ended tasks are remembered",
        old="        if row.state.terminal:\n            return\n",
        new="",
        caught_by=f"{_KNOWN}::test_a_task_that_has_ended_is_forgotten",
    ),
    _in_known(
        name="a late answer brings an older row back",
        old="known.row.version > row.version",
        new="False",
        caught_by=f"{_KNOWN}::test_an_answer_that_comes_late_does_not_bring_an_older_row_back",
    ),
    _in_turnstile(
        name="the turn of somebody else is no new spell",
        old="self.quiet_spell += 1",
        new="pass",
        caught_by=f"{_KNOWN}::test_a_row_that_another_wrote_is_read_after_a_turn_of_our_own",
    ),
    _in_turnstile(
        name="whoever has a turn leaves no mark",
        old="return self._last[:] == self._mark",
        new="return self.quiet_spell > 0",
        caught_by=f"{_SQLITE}::test_a_row_that_was_read_and_then_changed_by_another_is_read_afresh",
    ),
    _in_memory(
        name="pauses between rings do not double in memory",
        old="row.rung_at - row.due_at <= due_by - row.rung_at",
        new="row.rung_at <= due_by",
        caught_by=f"{_MEMORY}::"
        "test_a_task_is_unrung_when_its_last_ring_is_as_long_ago_as_it_had_been_due",
    ),
    _in_memory(
        name="ends that are recorded are found again in memory",
        old="and task.spec.number not in job.ended",
        new="",
        caught_by=f"{_MEMORY}::test_an_end_is_unrecorded_until_its_job_knows_of_it",
    ),
    _in_memory(
        name="a task that awaits nothing that completed is sent on in memory",
        old="bool(task.awaits & job.completed)",
        new="bool(job.completed)",
        caught_by=f"{_MEMORY}::test_a_task_that_was_told_of_its_parents_is_not_found",
    ),
    _in_failed(
        name="the first to fail come before the last",
        old="ORDER BY finished_us DESC, id DESC",
        new="ORDER BY finished_us, id DESC",
        caught_by=f"{_SQLITE}::test_the_last_to_fail_comes_first_whenever_it_was_created",
    ),
    _in_failed(
        name="the next tenant is looked for task by task",
        old="SELECT min(tenant) FROM tasks INDEXED BY tasks_failed WHERE",
        new="SELECT min(tenant || '') FROM tasks INDEXED BY tasks_failed WHERE",
        caught_by=f"{_FAILED}::test_of_very_many_only_those_that_are_asked_for_are_looked_at",
    ),
    _in_failed(
        name="a damaged row hides all that failed",
        old="iif(json_valid(body), body ->> '$.failure.category', NULL)",
        new="body ->> '$.failure.category'",
        caught_by=f"{_FAILED}::"
        "test_a_damaged_row_and_a_category_of_a_newer_version_are_failures_of_no_known_kind",
    ),
    _in_memory(
        name="what failed for another tenant is among ours",
        old="if row.state is TaskState.FAILED and row.spec.tenant == tenant",
        new="if row.state is TaskState.FAILED",
        caught_by=f"{_MEMORY}::test_failed_tasks_of_another_tenant_are_not_among_them",
    ),
    _in_memory(
        name="a tenant whose tasks all ended well has failed ones",
        old="for row in rows if row.state is TaskState.FAILED}",
        new="for row in rows if row.state.terminal}",
        caught_by=f"{_MEMORY}::"
        "test_a_task_that_ended_otherwise_or_has_another_round_has_not_failed",
    ),
)
