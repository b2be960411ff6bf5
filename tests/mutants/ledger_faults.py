"""Faults that the ledger's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteLedgerInFour"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_ATOMIC_MEMORY = "contract/test_memory.py::TestAtomicMemoryLedger"

_fault = partial(Fault, part=Part.LEDGER)
_in_commit = partial(_fault, file="adapters/sqlite/commit.py")
_in_ledger = partial(_fault, file="adapters/sqlite/ledger.py")
_in_writer = partial(_fault, file="adapters/sqlite/writer.py")
_in_memory = partial(_fault, file="adapters/memory/ledger.py")
_in_listings = partial(_fault, file="adapters/memory/listings.py")

LEDGER_FAULTS = (
    _in_commit(
        name="an old version of a task may be changed",
        old='" WHERE id=? AND version=?"',
        new='" WHERE id=? AND version>=?"',
        caught_by=f"{_SQLITE}::test_a_change_from_an_old_version_is_a_conflict_and_writes_nothing",
    ),
    _in_commit(
        name="a version still to come may be changed",
        old='" WHERE id=? AND version=?"',
        new='" WHERE id=? AND version<=?"',
        caught_by=f"{_SQLITE}::test_a_change_from_a_version_that_is_still_to_come_is_a_conflict",
    ),
    _in_commit(
        name="an old version of a job may be changed",
        old="body=? WHERE id=? AND version=?",
        new="body=? WHERE id=? AND version>=?",
        caught_by=f"{_SQLITE}::test_a_job_is_changed_only_from_its_current_version",
    ),
    _in_commit(
        name="its own change id is not recognised",
        old="return bool(found) and found[0][0] == change.row.change_id",
        new="return False",
        caught_by=f"{_SQLITE}::test_the_same_change_again_is_success_and_writes_nothing_twice",
    ),
    _in_commit(
        name="a foreign change passes for its own",
        old="return bool(found) and found[0][0] == change.row.change_id",
        new="return bool(found)",
        caught_by=f"{_SQLITE}::test_a_second_creation_is_a_conflict_and_the_first_stays",
    ),
    _in_commit(
        name="events in a transaction of their own",
        old="            for sql, values in self._beside:\n",
        new="            connection.execute('COMMIT')\n"
        "            connection.execute('BEGIN IMMEDIATE')\n"
        "            for sql, values in self._beside:\n",
        caught_by=f"{_FOUR}::test_nobody_sees_a_row_without_its_events_or_events_without_their_row",
    ),
    _in_commit(
        name="events of a job are forgotten",
        old="for event in change.events:\n",
        new="for event in change.events if isinstance(change.row, TaskRow) else ():\n",
        caught_by=f"{_SQLITE}::test_a_jobs_events_are_committed_with_its_row",
    ),
    _in_commit(
        name="the ring is not committed with the row",
        old="self._add(UPSERT_MESSAGE, _ring_values(effect, now), Topic.QUEUE)",
        new="pass",
        caught_by=f"{_SQLITE}::test_a_ring_is_on_the_queue_once_after_the_commit",
    ),
    _in_commit(
        name="a ring for later is heard at once",
        old="codec.to_us(now), visible)",
        new="codec.to_us(now), codec.to_us(now))",
        caught_by=f"{_SQLITE}::test_a_ring_for_later_is_heard_at_its_time",
    ),
    _in_writer(
        name="a refused change stays half written",
        old="if connection.total_changes() != before:",
        new="if False:",
        caught_by=f"{_SQLITE}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _in_writer(
        name="a refused change is not undone alone",
        old='connection.execute("ROLLBACK TO item")',
        new="pass",
        caught_by=f"{_SQLITE}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _in_writer(
        name="answered before it is committed",
        old="                self._commit(group)\n                self._deliver(group)\n",
        new="                self._deliver(group)\n                self._commit(group)\n",
        caught_by="adapters/sqlite/test_writer.py::"
        "test_an_error_at_the_commit_makes_the_whole_group_unknown",
    ),
    _in_ledger(
        name="a row that is remembered is never read again",
        old="iif(version = ?2, NULL, spec)",
        new="iif(version >= ?2 AND ?2 > 0, NULL, spec)",
        caught_by=f"{_SQLITE}::test_a_row_that_was_read_and_then_changed_by_another_is_read_afresh",
    ),
    _in_ledger(
        name="what is remembered is believed whoever has written since",
        old="if known is not None and known.spell == spell and turns.undisturbed:",
        new="if known is not None and known.spell == spell:",
        caught_by=f"{_SQLITE}::test_a_row_that_was_read_and_then_changed_by_another_is_read_afresh",
    ),
    _in_ledger(
        name="what is remembered outlives a turn of somebody else",
        old="if known is not None and known.spell == spell and turns.undisturbed:",
        new="if known is not None and turns.undisturbed:",
        caught_by="adapters/sqlite/test_known.py::"
        "test_a_row_that_another_wrote_is_read_after_a_turn_of_our_own",
    ),
    _in_ledger(
        name="tasks and jobs of every tenant are listed",
        old="WHERE tenant = ?1 AND (created_us",
        new="WHERE ?1 = ?1 AND (created_us",
        caught_by=f"{_SQLITE}::test_jobs_of_another_tenant_are_not_listed",
    ),
    _in_ledger(
        name="tasks of another tenant's job are listed",
        old="number > ?2 AND tenant = ?3",
        new="number > ?2 AND ?3 = ?3",
        caught_by=f"{_SQLITE}::test_tasks_of_another_tenant_are_not_listed",
    ),
    _in_ledger(
        name="tasks of another tenant are found",
        old="[row_id for row_id, of in found if of == tenant]",
        new="[row_id for row_id, _ in found]",
        caught_by=f"{_SQLITE}::test_ids_of_another_tenant_are_not_found",
    ),
    _in_ledger(
        name="a page begins with the last of the one before",
        old="(created_us, id) < (?2, ?3)",
        new="(created_us, id) <= (?2, ?3)",
        caught_by=f"{_SQLITE}::test_the_pages_of_a_tenants_tasks_give_each_once_and_end",
    ),
    _in_ledger(
        name="a page forgets the id among equal times",
        old="(created_us, id) < (?2, ?3)",
        new="created_us < ?2 AND ?3 = ?3",
        caught_by=f"{_SQLITE}::test_the_pages_of_jobs_give_each_once_and_end",
    ),
    _in_ledger(
        name="a task that is due now is not unrung",
        old="WHERE due_us <= ? AND",
        new="WHERE due_us < ? AND",
        caught_by=f"{_SQLITE}::test_a_task_is_unrung_from_the_moment_it_is_due",
    ),
    _in_ledger(
        name="a task that was just rung is unrung",
        old="AND rung_us < ? AND",
        new="AND rung_us <= ? AND",
        caught_by=f"{_SQLITE}::test_a_task_is_unrung_only_if_it_was_rung_before",
    ),
    _in_ledger(
        name="a lease lives one tick too long",
        old="WHERE lease_us <= ? ORDER BY lease_us, id",
        new="WHERE lease_us < ? ORDER BY lease_us, id",
        caught_by=f"{_SQLITE}::test_a_lease_has_expired_at_its_end_and_not_before",
    ),
    _in_ledger(
        name="held tasks come in any order",
        old="WHERE lease_us <= ? ORDER BY lease_us, id",
        new="WHERE lease_us <= ? ORDER BY id",
        caught_by=f"{_SQLITE}::test_held_tasks_come_with_the_earliest_end_first",
    ),
    _in_ledger(
        name="a nudge between two waits is lost",
        old="seen = self._nudges.setdefault(worker_id, self._count_nudges(worker_id))",
        new="seen = self._count_nudges(worker_id)",
        caught_by=f"{_SQLITE}::test_a_nudge_between_two_waits_is_not_lost",
    ),
    _in_ledger(
        name="a nudge is told again and again",
        old="self._nudges[worker_id] = count\n",
        new="self._nudges[worker_id] = 0\n",
        caught_by=f"{_SQLITE}::test_a_nudge_is_told_once",
    ),
    _fault(
        name="a commit wakes no other process",
        file="adapters/sqlite/writer.py",
        old="self._bells.ring_elsewhere(topics)",
        new="pass",
        caught_by=f"{_FOUR}::test_a_worker_is_nudged_when_its_task_is_to_be_cancelled",
    ),
    _in_memory(
        name="a version still to come may be changed in memory",
        old="change.expected_version != (row.version if row else 0)",
        new="change.expected_version < (row.version if row else 0)",
        caught_by=f"{_MEMORY}::test_a_change_from_a_version_that_is_still_to_come_is_a_conflict",
    ),
    _in_memory(
        name="a change that comes again does not ring",
        old="effects = [effect for change in changes for",
        new="effects = [effect for change in fresh for",
        caught_by=f"{_MEMORY}::"
        "test_a_change_whose_answer_was_lost_still_rings_when_it_is_committed_again",
    ),
    _in_memory(
        name="rows are written one by one in memory",
        old="        fresh = [change for change in changes if not self._is_committed(change)]\n",
        new="        fresh = []\n"
        "        for change in changes:\n"
        "            if not self._is_committed(change):\n"
        "                self._write(change.row)\n"
        "                fresh.append(change)\n",
        caught_by=f"{_ATOMIC_MEMORY}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _in_memory(
        name="a lease lives one tick too long in memory",
        old="row.lease.expires_at <= expired_by",
        new="row.lease.expires_at < expired_by",
        caught_by=f"{_MEMORY}::test_a_lease_has_expired_at_its_end_and_not_before",
    ),
    _in_listings(
        name="a page begins with the last of the one before in memory",
        old="if row.spec.number > place]",
        new="if row.spec.number >= place]",
        caught_by=f"{_MEMORY}::test_the_pages_of_a_jobs_tasks_give_each_once_and_end",
    ),
)
