"""Bugs of the dispatcher: who is sent on when, and what a job hears of its tasks.

Most of what a dispatcher forgets the sweeper mends in half a minute, so that nothing of it is seen
in the end: these have to be noticed while they happen.
"""

from tests.planting import After, Before, Condition, Drop, Replace, Swap, Value
from tests.simulation.task_bugs import Bug

DISPATCHER_BUGS = (
    Bug(
        "a dependent is sent on when one of its parents has completed",
        at="core.tasks.operator:parents_completed",
        do=Value("return change()", "$3"),
    ),
    Bug(
        "parents are counted, so that an event that comes twice counts twice",
        at="core.tasks.operator:parents_completed",
        do=Value("= awaits", "type($1)([*$1][len($2):])"),
    ),
    Bug(
        "a task is sent on each time that it is told",
        at="core.tasks.operator:parents_completed",
        do=Condition("state", "step.row.state not in (TaskState.WAITING, TaskState.PENDING)"),
    ),
    Bug(
        "an event that is faster than its row is forgotten",
        at="services.dispatcher:Dispatcher._read_rows",
        do=Condition("all()", "known"),
    ),
    Bug(
        "an event is acknowledged before it is dealt with",
        at="services.dispatcher:Dispatcher.step",
        do=Swap("with", "acknowledge()"),
    ),
    Bug(
        "tasks are read before their job",
        at="services.dispatcher:Dispatcher._try_settle_job",
        do=(
            Drop("= _read_rows()"),
            Before(
                "while",
                "ended = [row for row in await self._read_rows(sequences) if row.state.terminal]",
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
        at="services.dispatcher:Dispatcher._notify_dependents",
        do=Value("for _dependents()", "$0[:1]"),
    ),
    Bug(
        "dependents that were added later are not told",
        at="services.dispatcher:Dispatcher._dependents",
        do=Condition("number", False),
    ),
    Bug(
        "what was added behind a failure is not blocked by it",
        at="services.dispatcher:Dispatcher._blocked_by",
        do=Drop("not in number"),
    ),
    Bug(
        "a task that failed is recorded as completed",
        at="core.jobs.job:_with_recorded_ends",
        do=After(
            "NumberSet() COMPLETED", "completed = completed | NumberSet(numbers[TaskState.FAILED])"
        ),
    ),
    Bug(
        "a failure after a resume is not told",
        at="core.jobs.job:_tasks_ended",
        do=Replace("< failure_emitted_round", "not $1"),
    ),
    Bug(
        "a doorbell is rung before the commit",
        at="services.transitions:Transitions.commit",
        do=Replace(
            "_enqueue()",
            (
                "await self._enqueue([effect for change in changes for effect in"
                " change.effects])\n$1"
            ),
        ),
    ),
)
