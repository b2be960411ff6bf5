"""Bugs of tasks in child slots."""

from tests.planting import After, Argument, Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

_TASKS = "services.worker.attempts:Attempts"

SLOT_BUGS = (
    Bug(
        "what waits in a slot is lost when the worker stops",
        at=f"{_TASKS}.release_unbegun",
        do=Replace("_return()", "self._slots.take_back(slot)"),
    ),
    Bug(
        "a task that had begun in a child that has ended waits for another slot",
        at=f"{_TASKS}.child_ended",
        do=Condition("not_begun", True),
    ),
    Bug(
        "a task that is taken back from a slot is lost",
        at=f"{_TASKS}._return",
        do=Drop("_wait_again()"),
    ),
    Bug(
        "what a dead worker had begun in its slots uses no attempt",
        at="services.sweeper:Sweeper._unbegun_tasks",
        do=Replace("not in", "True"),
    ),
    Bug(
        "what a dead worker had begun outside of its slots uses no attempt",
        at="services.sweeper:Sweeper._runs_in_slot",
        do=Replace("runs_in_slot()", "True"),
    ),
    Bug(
        "a lease is trusted in a slot up to its end and beyond",
        at=f"{_TASKS}._update_trust",
        do=Argument("trust_until()", 1, "trusted + 60 * 10**9"),
    ),
    Bug(
        "the reaper of a frozen worker lets its child outlive the lease",
        at=f"{_TASKS}._deadline_ns",
        do=Value("return trusted_until_ns", "attempt.trusted_until_ns + 60 * 10**9"),
    ),
    Bug(
        "an outcome of a slot is committed before its output is stored",
        at=f"{_TASKS}._store_output",
        do=(Drop("finish()"), Condition("store_output()", False)),
    ),
    Bug(
        "a step in a slot is confirmed before it is saved",
        at=f"{_TASKS}._store_checkpoint",
        do=After(
            "store_step()",
            "attempt.slot is None"
            " or self._slots.confirm_step(attempt.slot, attempt.number, step.name)",
        ),
    ),
    Bug(
        "slots run more tasks than the worker has units",
        at="core.slot_plan:_may_have",
        do=Value("return free", "True"),
    ),
)
