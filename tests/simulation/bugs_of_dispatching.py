"""Bugs of the dispatcher: who is sent on when, and what a job hears of its tasks.

Most of what a dispatcher forgets the sweeper mends in half a minute, so that nothing of it is seen
in the end: these have to be noticed while they happen.
"""

from tests.simulation.bugs_of_tasks import Bug

_DISPATCHER = "services/dispatcher.py"
_DECIDE = (
    "        async def decide(job: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:\n"
)
_TERMINAL_ROWS = "ended = [row for row in await self._rows(heard) if row.state.terminal]\n"
_SETTLE = (
    '        with stepped_over(logger, "dispatch.left_to_sweeper", tasks=list(heard)):\n'
    "            await self._settle(heard)\n"
)
_ACKNOWLEDGE = "        await bus.acknowledge(CONSUMER, delivery.receipt)\n"

BUGS_OF_DISPATCHING = (
    Bug(
        "a dependent is sent on when one of its parents has completed",
        "core/task/wishes.py",
        "    return step.change(awaits=left) if left else make_pending(step)\n",
        "    return make_pending(step)\n",
    ),
    Bug(
        "parents are counted, so that an event that comes twice counts twice",
        "core/task/wishes.py",
        "    left = step.row.awaits - command.numbers\n",
        "    left = type(step.row.awaits)([*step.row.awaits][len(command.numbers) :])\n",
    ),
    Bug(
        "a task is sent on each time that it is told",
        "core/task/wishes.py",
        "    if step.row.state is not TaskState.WAITING or left == step.row.awaits:\n",
        "    if step.row.state not in (TaskState.WAITING, TaskState.PENDING):\n",
    ),
    Bug(
        "an event that is faster than its row is forgotten",
        _DISPATCHER,
        "if all(known.get(task_id, _AS_IT_IS) >= heard[task_id] for task_id in heard):",
        "if known:",
    ),
    Bug(
        "an event is acknowledged before it is dealt with",
        _DISPATCHER,
        _SETTLE + _ACKNOWLEDGE,
        _ACKNOWLEDGE + _SETTLE,
    ),
    Bug(
        "tasks are read before their job",
        _DISPATCHER,
        _DECIDE + "            before.append(job)\n            " + _TERMINAL_ROWS,
        "        " + _TERMINAL_ROWS + "\n" + _DECIDE + "            before.append(job)\n",
    ),
    Bug(
        "an end by a timeout is not heard of",
        _DISPATCHER,
        "if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal",
        "if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal and name != 'Task Timeout'",
    ),
    Bug(
        "an end by a cancellation is not heard of",
        _DISPATCHER,
        "if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal",
        "if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal and name != 'Task Cancelled'",
    ),
    Bug(
        "only the first of several dependents is told",
        _DISPATCHER,
        "                for key in await self._dependents(job, row):\n",
        "                for key in (await self._dependents(job, row))[:1]:\n",
    ),
    Bug(
        "dependents that were added later are not told",
        _DISPATCHER,
        "        if row.spec.number in job.grown:\n",
        "        if False:\n",
    ),
    Bug(
        "what was added behind a failure is not blocked by it",
        _DISPATCHER,
        "alone = row.spec.dependents is None and row.spec.number not in job.grown\n",
        "alone = row.spec.dependents is None\n",
    ),
    Bug(
        "a task that failed is recorded as completed",
        "core/job.py",
        "    completed = row.completed | NumberSet(numbers[TaskState.COMPLETED])\n",
        "    completed = row.completed | NumberSet(numbers[TaskState.COMPLETED])\n"
        "    completed = completed | NumberSet(numbers[TaskState.FAILED])\n",
    ),
    Bug(
        "a failure after a resume is not told",
        "core/job.py",
        "    if fresh and row.failure_told_in < row.round:\n",
        "    if fresh and not row.failure_told_in:\n",
    ),
    Bug(
        "a doorbell is rung before the commit",
        "services/transitions.py",
        "        await self._ring(await self.persistently(commit))\n",
        "        await self._ring([effect for change in changes for effect in change.effects])\n"
        "        await self.persistently(commit)\n",
    ),
)
