"""Bugs of the dispatcher: when dependents are dispatched, and what a job records of its tasks.

The sweeper repairs most omissions of the dispatcher within half a minute, so the final state does
not show them. They must be noticed while they happen.
"""

from tests.planting import After, Before, Condition, Drop, Replace, Swap, Value
from tests.simulation.task_bugs import Bug

DISPATCHER_BUGS = (
    Bug(
        "a dependent is dispatched when one of its parents has completed",
        at="core.tasks.task:parents_completed",
        do=Value("return change()", "$3"),
    ),
    Bug(
        "parents are counted, so a duplicate event counts twice",
        at="core.tasks.task:parents_completed",
        do=Value("= awaits", "type($1)([*$1][len($2):])"),
    ),
    Bug(
        "a task is dispatched on every duplicate event",
        at="core.tasks.task:parents_completed",
        do=Condition("state", "step.row.state not in (TaskState.WAITING, TaskState.PENDING)"),
    ),
    Bug(
        "an event that arrives before its row is forgotten",
        at="services.dispatcher:Dispatcher._read_rows",
        do=Condition("all()", True),
    ),
    Bug(
        "an event is acknowledged before it is handled",
        at="services.dispatcher:Dispatcher.step",
        do=Swap("with", "acknowledge()"),
    ),
    Bug(
        "tasks are read before their job",
        at="services.dispatcher:Dispatcher._settle_job",
        do=(
            Drop("= _read_rows()"),
            Before(
                "while",
                "ended = [row for row in await self._read_rows(sequences) if row.state.terminal]",
            ),
        ),
    ),
    Bug(
        "the dispatcher ignores timeouts",
        at="services.dispatcher:ENDING_EVENTS",
        do=Condition("EVENT_TO_STATE", "$0 and name != 'Task Timeout'"),
    ),
    Bug(
        "the dispatcher ignores cancellations",
        at="services.dispatcher:ENDING_EVENTS",
        do=Condition("EVENT_TO_STATE", "$0 and name != 'Task Cancelled'"),
    ),
    Bug(
        "only the first of several dependents is notified",
        at="core.jobs.settle:parents_completed",
        do=Value("for keys_by_task", "$0[:1]"),
    ),
    Bug(
        "dependents that were added later are not notified",
        at="core.jobs.settle:name_dependents",
        do=Condition("number", False),
    ),
    Bug(
        "a task that was added behind a failure is not blocked by it",
        at="core.jobs.settle:_needs_graph",
        do=Condition(
            "with_added_dependents",
            "row.state is TaskState.COMPLETED and row.spec.number in job.with_added_dependents",
        ),
    ),
    Bug(
        "a task that failed is recorded as completed",
        at="core.jobs.job:_with_recorded_ends",
        do=After("= NumberSet", "completed = completed | failed"),
    ),
    Bug(
        "a failure after a resume is not reported",
        at="core.jobs.job:_tasks_ended",
        do=Replace("< failure_emitted_round", "not $1"),
    ),
    Bug(
        "a message is sent before the commit",
        at="services.transitions:Transitions.commit",
        do=Replace(
            "enqueue()",
            ("await self.enqueue([effect for change in changes for effect in change.effects])\n$1"),
        ),
    ),
)
