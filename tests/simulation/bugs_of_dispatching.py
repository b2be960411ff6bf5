"""Bugs of the dispatcher: who is sent on when, and what a job hears of its tasks.

Most of what a dispatcher forgets the sweeper mends in half a minute, so that nothing of it is seen
in the end: these have to be noticed while they happen.
"""

from tests.planting import After, Before, Condition, Drop, Replace, Swap, Value
from tests.simulation.bugs_of_tasks import Bug

BUGS_OF_DISPATCHING = (
    Bug(
        "a dependent is sent on when one of its parents has completed",
        at="core.task.wishes:parents_done",
        do=Value("return change()", "$3"),
    ),
    Bug(
        "parents are counted, so that an event that comes twice counts twice",
        at="core.task.wishes:parents_done",
        do=Value("= awaits", "type($1)([*$1][len($2):])"),
    ),
    Bug(
        "a task is sent on each time that it is told",
        at="core.task.wishes:parents_done",
        do=Condition("state", "step.row.state not in (TaskState.WAITING, TaskState.PENDING)"),
    ),
    Bug(
        "an event that is faster than its row is forgotten",
        at="services.dispatcher:Dispatcher._rows",
        do=Condition("all()", "known"),
    ),
    Bug(
        "an event is acknowledged before it is dealt with",
        at="services.dispatcher:Dispatcher.step",
        do=Swap("with", "acknowledge()"),
    ),
    Bug(
        "tasks are read before their job",
        at="services.dispatcher:Dispatcher._moved",
        do=(
            Drop("= _rows()"),
            Before(
                "def JobDecision",
                "ended = [row for row in await self._rows(heard) if row.state.terminal]",
            ),
        ),
    ),
    Bug(
        "an end by a timeout is not heard of",
        at="services.dispatcher:ENDING_EVENTS",
        do=Condition("EVENT_TO_STATE", "$0 and name != 'Task Timeout'"),
    ),
    Bug(
        "an end by a cancellation is not heard of",
        at="services.dispatcher:ENDING_EVENTS",
        do=Condition("EVENT_TO_STATE", "$0 and name != 'Task Cancelled'"),
    ),
    Bug(
        "only the first of several dependents is told",
        at="services.dispatcher:Dispatcher._tell_dependents",
        do=Value("for _dependents()", "$0[:1]"),
    ),
    Bug(
        "dependents that were added later are not told",
        at="services.dispatcher:Dispatcher._dependents",
        do=Condition("number", False),
    ),
    Bug(
        "what was added behind a failure is not blocked by it",
        at="services.dispatcher:Dispatcher._behind",
        do=Drop("not in number"),
    ),
    Bug(
        "a task that failed is recorded as completed",
        at="core.job:_recorded",
        do=After(
            "NumberSet() COMPLETED", "completed = completed | NumberSet(numbers[TaskState.FAILED])"
        ),
    ),
    Bug(
        "a failure after a resume is not told",
        at="core.job:_tasks_ended",
        do=Replace("< failure_told_in", "not $1"),
    ),
    Bug(
        "a doorbell is rung before the commit",
        at="services.transitions:Transitions.commit",
        do=Replace(
            "_ring()",
            ("await self._ring([effect for change in changes for effect in change.effects])\n$1"),
        ),
    ),
)
