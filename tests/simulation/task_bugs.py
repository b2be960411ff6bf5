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
    """A bug of the protocol that the simulator must find."""

    name: str
    at: str  # the symbol, as `tests.planting` describes it
    do: Operation | tuple[Operation, ...]
    profile: str = "default"  # the profile that finds it

    @property
    def change(self) -> Change:
        """The change of the source."""
        return Change(self.at, self.do)


TASK_BUGS = (
    Bug(
        "the fence is not checked on completion",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.Complete) and $0"),
    ),
    Bug(
        "the fence is not checked on failure",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.AttemptFailed) and $0"),
    ),
    Bug(
        "the fence is not checked on release",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.Release) and $0"),
    ),
    Bug(
        "the fence is not checked on a checkpoint",
        at="core.tasks.task:apply",
        do=Condition("check_fence()", "not isinstance(command, c.SaveCheckpoint) and $0"),
    ),
    Bug(
        "an event is not committed with its row",
        at="testing.memory.ledger:MemoryStore.commit",
        do=Argument("record()", 0, "[e for e in $0 if e.type != 'Task Released']"),
    ),
    Bug(
        "a commit whose answer was lost counts as a conflict",
        at="testing.memory.ledger:MemoryStore._is_committed",
        do=Condition("change_id", False),
    ),
    Bug(
        "a row is overwritten without a check of its version",
        at="testing.memory.ledger:MemoryStore._is_committed",
        do=Operator("!= expected_version", ">"),
    ),
    Bug(
        "an attempt number is used twice after a resume",
        at="core.tasks.task:resume",
        do=Value("= 'round':", "{**$0, 'attempt': 0}"),
    ),
    Bug(
        "a fence is used twice",
        at="core.tasks.lease:next_fence",
        do=(Replace("+ max()", "$1"), Argument("max()", 2, "1")),
    ),
    Bug(
        "a late event of an old round is applied",
        at="core.jobs.job:_is_stale",
        do=Operator("< round", ">"),
    ),
    Bug(
        "a message is deleted before the claim is committed",
        at="services.message_source:MessageTaskSource._try_claim",
        do=Before("= Claim()", "await self._queue.delete([message.receipt])"),
    ),
    Bug(
        "a message is deleted before the outcome is committed",
        at="services.message_source:MessageTaskSource._try_claim",
        do=After("= _LeasedTask()", "await self._queue.delete([message.receipt])"),
    ),
    Bug(
        "an expired lease is renewed",
        at="core.tasks.task:renew",
        do=Condition("is_live()", False),
    ),
    Bug(
        "dependents are dispatched before their parent has completed",
        at="core.jobs.settle:name_dependents",
        do=Condition("COMPLETED", False),
    ),
    Bug(
        "a running task becomes a dead letter",
        at="core.tasks.task:fail_task",
        do=Condition("is_over()", False),
    ),
    Bug(
        "the end of a job is reported twice",
        at="core.jobs.job:_tasks_ended",
        do=Replace("end_unreported after", "$0 or fresh"),
    ),
    Bug(
        "the failure of a job is reported each time",
        at="core.jobs.job:_tasks_ended",
        do=Drop("< failure_emitted_round"),
    ),
    Bug(
        "a release costs an attempt",
        at="core.tasks.task:release",
        do=Argument("pending()", "attempts_used", "row.attempts_used + 1"),
    ),
    Bug(
        "attempts are not counted",
        at="core.tasks.task:_end_attempt",
        do=Value("= attempts_used", "$1 + ($2 and step.context.origin == 'worker')"),
    ),
    Bug(
        "a task is taken over before its lease has expired",
        at="core.tasks.lease:is_over",
        do=Replace("+ expires_at", "$1 - 4 * $2"),
    ),
    Bug(
        "a worker keeps running after its lease has expired",
        at="services.worker.attempts:Attempts._wait_for_lease_end",
        do=(Condition("_now_ns()", "(left_ns := 10**15)"),),
    ),
    Bug(
        "a child is started after the lease has expired",
        at="services.worker.attempts:Attempts._start_child",
        do=Condition("_now_ns()", False),
    ),
    Bug(
        "earlier steps are lost when a step is saved",
        at="services.worker.output:store_step",
        do=Value("'previous':", "None"),
    ),
    Bug(
        "a step is confirmed before it is saved",
        at="services.worker.attempts:Attempts._store_checkpoint",
        do=After("store_step()", "attempt.child and await attempt.child.confirm_step(step.name)"),
    ),
    Bug(
        "an outcome is committed before its output is stored",
        at="services.worker.output:OutputPump",
        do=(Value("return _stored", "self._sequence or None"), Condition("_waiting", False)),
    ),
    Bug(
        "a running task is cancelled at once",
        at="core.tasks.task:request_cancel",
        do=Condition("lease", True),
    ),
    Bug(
        "a resumed task does not wait for its parents",
        at="core.tasks.task:resume",
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
        "a repeated request adds its tasks again",
        at="services.submit:Producer.add_tasks",
        do=Condition("find_addition()", "$0 and existing is None"),
    ),
    Bug(
        "a task is added behind a failure and counted as able to run",
        at="services.submit:Producer._commit_addition",
        do=Argument("AddTasks()", "blocked", None),
    ),
    Bug(
        "an added task does not wait for its parents",
        at="core.jobs.planning:plan_tasks",
        do=Argument("PlannedTask()", 1, "NumberSet()"),
    ),
    Bug(
        "open intents are never finished",
        at="services.sweeper:Sweeper._repairs_in_order",
        do=Drop("_finish_intents"),
    ),
    Bug(
        "lost messages are never sent again",
        at="services.sweeper:Sweeper._settle_and_enqueue",
        do=Drop("_enqueue_again()"),
    ),
    Bug(
        "a late message runs a completed task again",
        at="core.tasks.task:claim",
        do=Condition("PENDING", "row.state not in (TaskState.PENDING, TaskState.COMPLETED)"),
    ),
    Bug(
        "an event is trusted more than the row",
        at="services.dispatcher:Dispatcher._settle_job",
        do=Drop("terminal"),
    ),
    Bug(
        "the waits for rate limits are not added up",
        at="core.tasks.task:_end_attempt",
        do=Drop("+= max()"),
    ),
    Bug(
        "a task that has waited too long for rate limits is tried again",
        at="core.tasks.task:_end_attempt",
        do=Condition("longest", False),
    ),
)
