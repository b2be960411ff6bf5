"""Bugs of tasks, attempts, messages, leases and intents."""

from dataclasses import dataclass

from tests.planting import (
    After,
    Argument,
    Before,
    Change,
    Condition,
    Drop,
    Operation,
    Operator,
    Replace,
    Value,
)


@dataclass(frozen=True, slots=True)
class Bug:
    """A fault of the protocol that the simulator has to find."""

    name: str
    at: str  # the symbol, as `tests.planting` takes it
    do: Operation | tuple[Operation, ...]
    profile: str = "default"  # in which it is to be found

    @property
    def change(self) -> Change:
        """What is done to the source."""
        return Change(self.at, self.do)


TASK_BUGS = (
    Bug(
        "fence not checked on complete",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.Complete) and $0"),
    ),
    Bug(
        "fence not checked on failure",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.AttemptFailed) and $0"),
    ),
    Bug(
        "fence not checked on release",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.Release) and $0"),
    ),
    Bug(
        "fence not checked on a checkpoint",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.SaveCheckpoint) and $0"),
    ),
    Bug(
        "event not committed with its row",
        at="adapters.memory.ledger:MemoryLedger.commit",
        do=Argument("record()", 0, "[e for e in $0 if e.type != 'Task Released']"),
    ),
    Bug(
        "own lost answer taken for a conflict",
        at="adapters.memory.ledger:MemoryLedger._is_committed",
        do=Condition("change_id", False),
    ),
    Bug(
        "row written over without looking at its version",
        at="adapters.memory.ledger:MemoryLedger._is_committed",
        do=Operator("!= expected_version", ">"),
    ),
    Bug(
        "attempt number used twice after a resume",
        at="core.tasks.operator:resume",
        do=Value("= 'round':", "{**$0, 'attempt': 0}"),
    ),
    Bug(
        "fence used twice",
        at="core.tasks.lease:next_fence",
        do=(Replace("+ max()", "$1"), Argument("max()", 2, "1")),
    ),
    Bug(
        "late event of an old round believed",
        at="core.jobs.job:_is_stale",
        do=Operator("< round", ">"),
    ),
    Bug(
        "message deleted before the claim is committed",
        at="services.worker.worker:Worker._claim_and_run",
        do=After("elapsed()", "await self._backend.queue.delete([message.receipt])"),
    ),
    Bug(
        "message deleted before the outcome is committed",
        at="services.worker.worker:Worker._claim_and_run",
        do=Before("_run()", "await self._backend.queue.delete([message.receipt])"),
    ),
    Bug(
        "lease renewed after it ran out",
        at="core.tasks.attempts:renew",
        do=Condition("is_live()", False),
    ),
    Bug(
        "dependents sent on before their parent completed",
        at="services.dispatcher:Dispatcher._notify_dependents",
        do=Condition("state", True),
    ),
    Bug(
        "dead letter made of a live task",
        at="core.tasks.attempts:fail_task",
        do=Condition("is_over()", False),
    ),
    Bug(
        "end of a job told twice",
        at="core.jobs.job:_tasks_ended",
        do=Replace("end_unreported after", "$0 or fresh"),
    ),
    Bug(
        "failure of a job told each time",
        at="core.jobs.job:_tasks_ended",
        do=Drop("< failure_emitted_round"),
    ),
    Bug(
        "a release costs an attempt",
        at="core.tasks.attempts:release",
        do=Argument("change()", "attempts_used", "row.attempts_used + 1"),
    ),
    Bug(
        "attempts are not counted",
        at="core.tasks.attempts:_end_attempt",
        do=Value("= attempts_used", "$1 + ($2 and step.context.origin == 'worker')"),
    ),
    Bug(
        "taken over before the lease is over",
        at="core.tasks.lease:is_over",
        do=Replace("+ expires_at", "$1 - 4 * $2"),
    ),
    Bug(
        "worker does not fence itself",
        at="services.worker.attempt:Attempt._wait_for_lease_end",
        do=(Condition("elapsed()", True), Argument("sleep()", 0, "timedelta(days=1)")),
    ),
    Bug(
        "child started after the lease can be trusted",
        at="services.worker.attempt:Attempt._run_child",
        do=Condition("_lease_trusted", False),
    ),
    Bug(
        "earlier steps forgotten when one is kept",
        at="services.worker.attempt:Attempt._store_checkpoint",
        do=Value("'previous':", "None"),
    ),
    Bug(
        "child told that a step is kept before it is",
        at="services.worker.attempt:Attempt._store_checkpoint",
        do=After("retry_unavailable()", "await child.confirm_step(name)"),
    ),
    Bug(
        "outcome told before its output is stored",
        at="services.worker.output:OutputPump.settle",
        do=Condition("_waiting", False),
    ),
    Bug(
        "a task that runs is cancelled at once",
        at="core.tasks.operator:request_cancel",
        do=Condition("lease", True),
    ),
    Bug(
        "a resumed task does not wait for its parents",
        at="core.tasks.operator:resume",
        do=Replace("completed", "row.awaits"),
    ),
    Bug(
        "a half-created job is forgotten",
        at="services.submit:Producer._write_job",
        do=Argument("create()", "intent", None),
    ),
    Bug(
        "a half-done addition is forgotten",
        at="services.submit:Producer._commit_addition",
        do=Argument("replace()", "intent", None),
    ),
    Bug(
        "a request adds its tasks again",
        at="services.submit:Producer.add_tasks",
        do=Condition("find_addition()", "$0 and existing is None"),
    ),
    Bug(
        "a task is added behind a failure and counted as able to run",
        at="services.submit:Producer._commit_addition",
        do=Argument("AddTasks()", "blocked", None),
    ),
    Bug(
        "an added task waits for nobody",
        at="core.jobs.planning:_Planner.task",
        do=Argument("PlannedTask()", 1, "NumberSet()"),
    ),
    Bug(
        "nobody finishes what is half done",
        at="services.sweeper:Sweeper._repairs_in_order",
        do=Drop("_finish_intents"),
    ),
    Bug(
        "nobody rings again",
        at="services.sweeper:Sweeper._settle_and_enqueue",
        do=Drop("_enqueue_again()"),
    ),
    Bug(
        "a completed task is run again by its message",
        at="core.queues:triage",
        do=Drop("COMPLETED"),
    ),
    Bug(
        "the event log is believed, not the row",
        at="services.dispatcher:Dispatcher._try_settle_job",
        do=Drop("terminal"),
    ),
)
