"""Bugs of turns: batches of commands and claims, carried out in one step."""

from tests.planting import Argument, Before, Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

_SOURCE = "testing.memory.task_source:MemoryTaskSource"

TURN_BUGS = (
    Bug(
        "a command of a batch is applied under any fence",
        at=f"{_SOURCE}._answer",
        do=Argument(
            "apply()", 1, "__import__('dataclasses').replace(command.command, fence=row.fence)"
        ),
    ),
    Bug(
        "the job does not record an end that a turn has settled",
        at=f"{_SOURCE}._settle",
        do=Argument("commit()", 0, "changes[:-1]"),
    ),
    Bug(
        "a turn does not make dependents ready",
        at=f"{_SOURCE}._settle",
        do=Argument("commit()", 0, "changes[-1:]"),
    ),
    Bug(
        "a turn makes dependents ready before their last parent has completed",
        at="core.tasks.task:parents_completed",
        do=Condition("left", "False", nth=2),
    ),
    Bug(
        "a claim is answered and not committed",
        at=f"{_SOURCE}._claim",
        do=Drop("commit()"),
    ),
    Bug(
        "a turn claims tasks of a paused queue",
        at=f"{_SOURCE}._claim",
        do=Replace("paused_now()", "frozenset()"),
    ),
    Bug(
        "the answers of a turn are in another order",
        at=f"{_SOURCE}._carry_out",
        do=Value("return", "tuple(reversed($0))"),
    ),
    Bug(
        "a renewal is answered and not committed",
        at=f"{_SOURCE}._answer",
        do=Before(
            "commit()", "if isinstance(command.command, c.Renew): return Applied(change.row)"
        ),
    ),
    Bug(
        "an outcome is answered and not committed",
        at=f"{_SOURCE}._answer",
        do=Before(
            "commit()", "if isinstance(command.command, c.Complete): return Applied(change.row)"
        ),
    ),
    Bug(
        "a turn commits rows without their events",
        at=f"{_SOURCE}._answer",
        do=Argument("commit()", 0, "[__import__('dataclasses').replace(change, events=())]"),
    ),
    Bug(
        "an outcome under an unknown turn is sent under another command",
        at="services.worker.worker:Worker._exchange",
        do=Argument("turn()", 1, "commands[:-1] if room else commands"),
    ),
)
