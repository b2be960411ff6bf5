"""Faults that the ledger's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Before, Condition, Drop, Operator, Replace, Swap, Text, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteLedger"
_WRITER = "adapters/sqlite/test_writer.py"
_IDLE = "adapters/sqlite/test_idle.py"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteLedgerInFour"
_BACKEND = "adapters/sqlite/test_backend.py"
_MEMORY = "contract/test_memory.py::TestMemoryLedger"
_ATOMIC_MEMORY = "contract/test_memory.py::TestAtomicMemoryLedger"

_fault = partial(Fault, part=Part.LEDGER)

LEDGER_FAULTS = (
    _fault(
        name="an old version of a task may be changed",
        at="adapters.sqlite.transaction:StoreTransaction.write_task",
        do=Operator("!= expected_version", "<"),
        caught_by=f"{_SQLITE}::test_a_change_from_an_old_version_is_a_conflict_and_writes_nothing",
    ),
    _fault(
        name="a version still to come may be changed",
        at="adapters.sqlite.transaction:StoreTransaction.write_task",
        do=Operator("!= expected_version", ">"),
        caught_by=f"{_SQLITE}::test_a_change_from_a_version_that_is_still_to_come_is_a_conflict",
    ),
    _fault(
        name="its own change id is not recognised",
        at="adapters.sqlite.transaction:StoreTransaction.write_task",
        do=Condition("pack_change_id()", False),
        caught_by=f"{_SQLITE}::test_the_same_change_again_is_success_and_writes_nothing_twice",
    ),
    _fault(
        name="a foreign change passes for its own",
        at="adapters.sqlite.transaction:StoreTransaction.write_task",
        do=Condition("pack_change_id()", True),
        caught_by=f"{_SQLITE}::test_a_second_creation_is_a_conflict_and_the_first_stays",
    ),
    _fault(
        name="events in a transaction of their own",
        at="adapters.sqlite.ledger:SqliteLedger.commit.work",
        do=After(
            "reach()", ("transaction.execute('COMMIT')\ntransaction.execute('BEGIN IMMEDIATE')")
        ),
        caught_by=f"{_BACKEND}::test_a_row_is_not_written_if_the_feed_cannot_have_its_events",
    ),
    _fault(
        name="events of a job are forgotten",
        at="adapters.sqlite.transaction:StoreTransaction._grown_by",
        do=Value("= events row", "((), $1) if isinstance(change.row, JobRow) else $0"),
        caught_by=f"{_SQLITE}::test_a_jobs_events_are_committed_with_its_row",
    ),
    _fault(
        name="a refused change stays half written",
        at="adapters.sqlite.writer:DatabaseWriter._run_item",
        do=Condition("total_changes()", False),
        caught_by=f"{_SQLITE}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _fault(
        name="a refused change is not undone alone",
        at="adapters.sqlite.writer:DatabaseWriter._run_item",
        do=Drop("execute() 'ROLLBACK TO item'"),
        caught_by=f"{_SQLITE}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _fault(
        name="a job that exists is answered as created",
        at="adapters.sqlite.transaction:create_jobs",
        do=Replace("== pack_change_id()", "True"),
        caught_by=f"{_SQLITE}::test_a_job_that_exists_is_a_conflict_and_the_others_are_created",
    ),
    _fault(
        name="urgent work overtakes earlier work",
        at="adapters.sqlite.writer:DatabaseWriter.write",
        do=Replace("or durable _pending", "durable"),
        caught_by=f"{_WRITER}::test_urgent_work_waits_for_earlier_work_of_the_event_loop",
    ),
    _fault(
        name="urgent work waits for another process",
        at="adapters.sqlite.writer:DatabaseWriter._commit_on_loop",
        do=Condition("acquire_if_free()", False),
        caught_by=f"{_WRITER}::test_urgent_work_does_not_make_the_event_loop_wait_for_another_process",
    ),
    _fault(
        name="urgent work begins the log again",
        at="adapters.sqlite.writer:DatabaseWriter._commit_on_loop",
        do=Condition("_commit_would_sync()", False),
        caught_by=f"{_WRITER}::test_urgent_work_syncs_nothing_on_the_event_loop",
    ),
    _fault(
        name="urgent work copies the log",
        at="adapters.sqlite.writer:DatabaseWriter._commit",
        do=Replace("ternary 0 _wal_pages", "self._wal_pages"),
        caught_by=f"{_WRITER}::test_urgent_work_syncs_nothing_on_the_event_loop",
    ),
    _fault(
        name="answered before it is committed",
        at="adapters.sqlite.writer:DatabaseWriter._commit_next_group",
        do=Swap("_commit()", "_notify()"),
        caught_by=f"{_WRITER}::test_no_caller_is_answered_before_the_commit",
    ),
    _fault(
        name="a commit is not counted for processes that poll",
        at="adapters.sqlite.writer:DatabaseWriter._commit",
        do=Condition("total_changes()", True),
        caught_by=f"{_IDLE}::test_each_change_is_noticed_without_a_wake_up",
    ),
    _fault(
        name="a commit without an end is taken for no commit",
        at="adapters.sqlite.notifier:Notifier.commits",
        do=Value("return", "number"),
        caught_by=f"{_IDLE}::"
        "test_after_a_commit_without_an_end_every_poll_looks_until_the_next_commit",
    ),
    _fault(
        name="a commit after one without an end has none either",
        at="adapters.sqlite.notifier:Notifier.commit_begun",
        do=Operator("|=", "+"),
        caught_by=f"{_IDLE}::"
        "test_after_a_commit_without_an_end_every_poll_looks_until_the_next_commit",
    ),
    _fault(
        name="tasks and jobs of every tenant are listed",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Text("tenant = ?1", "?1 = ?1"),
        caught_by=f"{_SQLITE}::test_jobs_of_another_tenant_are_not_listed",
    ),
    _fault(
        name="tasks of another tenant's job are listed",
        at="adapters.sqlite.ledger:SqliteLedger._tasks_of_job",
        do=Text("+t.tenant = ?3", "?3 = ?3"),
        caught_by=f"{_SQLITE}::test_tasks_of_another_tenant_are_not_listed",
    ),
    _fault(
        name="tasks of another tenant are found",
        at="adapters.sqlite.ledger:SqliteLedger._keys_of",
        do=Text("+tenant = ?3", "?3 = ?3"),
        caught_by=f"{_SQLITE}::test_ids_of_another_tenant_are_not_found",
    ),
    _fault(
        name="a page begins with the last of the one before",
        at="adapters.sqlite.ledger:SqliteLedger.list_tasks",
        do=Text("t.no) < (?2", "t.no) <= (?2"),
        caught_by=f"{_SQLITE}::test_the_pages_of_a_tenants_tasks_give_each_once_and_end",
    ),
    _fault(
        name="a page forgets the id among equal times",
        at="adapters.sqlite.ledger:SqliteLedger.list_jobs",
        do=Text("(created_us, no) < (?2, ?3)", "created_us < ?2 AND ?3 = ?3"),
        caught_by=f"{_SQLITE}::test_the_pages_of_jobs_give_each_once_and_end",
    ),
    _fault(
        name="a lease lasts one tick too long",
        at="adapters.sqlite.ledger:SqliteLedger.leased_tasks",
        do=Text("<= ? ORDER", "< ? ORDER"),
        caught_by=f"{_SQLITE}::test_a_lease_has_expired_at_its_end_and_not_before",
    ),
    _fault(
        name="held tasks come in any order",
        at="adapters.sqlite.ledger:SqliteLedger.leased_tasks",
        do=Text("t.lease_ms, t.no", "t.no"),
        caught_by=f"{_SQLITE}::test_leased_tasks_come_with_the_earliest_end_first",
    ),
    _fault(
        name="a wake-up between two waits is lost",
        at="adapters.sqlite.ledger:SqliteLedger.wait_for_wake",
        do=Replace("setdefault()", "$2"),
        caught_by=f"{_SQLITE}::test_a_wake_between_two_waits_is_not_lost",
    ),
    _fault(
        name="a wake-up is delivered repeatedly",
        at="adapters.sqlite.ledger:SqliteLedger.wait_for_wake",
        do=Value("= wait_until()", "0"),
        caught_by=f"{_SQLITE}::test_a_wake_is_delivered_once",
    ),
    _fault(
        name="a commit wakes no other process",
        at="adapters.sqlite.writer:DatabaseWriter._wake_others",
        do=Drop("wake_others()"),
        caught_by=f"{_FOUR}::test_a_worker_is_woken_when_its_task_is_to_be_cancelled",
    ),
    _fault(
        name="a version still to come may be changed in memory",
        at="testing.memory.ledger:MemoryStore._is_committed",
        do=Operator("!= expected_version", "<"),
        caught_by=f"{_MEMORY}::test_a_change_from_a_version_that_is_still_to_come_is_a_conflict",
    ),
    _fault(
        name="a repeated change sends no message",
        at="testing.memory.ledger:MemoryStore.commit",
        do=Value("= effects", "[effect for change in fresh for effect in change.effects]"),
        caught_by=f"{_MEMORY}::"
        "test_a_change_whose_answer_was_lost_still_enqueues_when_it_is_committed_again",
    ),
    _fault(
        name="rows are written one by one in memory",
        at="testing.memory.ledger:MemoryStore.commit",
        do=(
            Value("= _is_committed()", "list(changes)"),
            Before("isinstance() TaskRow", "if self._is_committed(change):\n    continue"),
        ),
        caught_by=f"{_ATOMIC_MEMORY}::test_one_conflict_and_nothing_of_all_changes_is_written",
    ),
    _fault(
        name="a lease lasts one tick too long in memory",
        at="testing.memory.ledger:MemoryLedger.leased_tasks",
        do=Operator("<= expires_at", "<"),
        caught_by=f"{_MEMORY}::test_a_lease_has_expired_at_its_end_and_not_before",
    ),
    _fault(
        name="a page begins with the last of the one before in memory",
        at="testing.memory.ledger:_page",
        do=Operator("< position()", "<="),
        caught_by=f"{_MEMORY}::test_the_pages_of_a_jobs_tasks_give_each_once_and_end",
    ),
    _fault(
        name="an error while processes are woken ends the writer alone",
        at="adapters.sqlite.writer:DatabaseWriter",
        do=(
            Replace("Exception", "ZeroDivisionError", nth=3),
            Drop("end_process()", nth=1),
        ),
        caught_by="adapters/sqlite/test_writer.py::"
        "test_an_error_while_waking_other_processes_does_not_stop_the_writer",
    ),
    _fault(
        name="a process survives its writer",
        at="adapters.sqlite.writer:DatabaseWriter._run",
        do=Drop("end_process()"),
        caught_by="adapters/sqlite/test_writer.py::"
        "test_a_writer_that_dies_ends_the_process_with_a_message",
    ),
    _fault(
        name="without descriptors the pipe of a living process is removed",
        at="adapters.sqlite.notifier:Notifier._refresh_peers",
        do=Condition("errno", True),
        caught_by="adapters/sqlite/test_writer.py::"
        "test_running_out_of_descriptors_leaves_the_pipe_of_a_living_process",
    ),
)
