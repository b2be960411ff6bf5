"""Bugs of tasks, attempts, messages, leases and intents, each a piece of source and its instead."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bug:
    """A piece of source, and what stands there instead."""

    name: str
    path: str  # below src/longshore
    text: str
    instead: str
    weather: str = "any"  # in which it is to be found


def _held(function: str, command: str) -> str:
    return (
        f"def {function}(step: Step, command: c.{command}) -> Decision:\n"
        "    if isinstance(lease := step.held(command.fence), Refusal):\n"
        "        return lease\n"
    )


BUGS_OF_TASKS = (
    Bug(
        "fence not checked on complete",
        "core/task/attempts.py",
        _held("complete", "Complete"),
        "def complete(step: Step, command: c.Complete) -> Decision:\n",
    ),
    Bug(
        "fence not checked on failure",
        "core/task/attempts.py",
        _held("attempt_failed", "AttemptFailed"),
        "def attempt_failed(step: Step, command: c.AttemptFailed) -> Decision:\n",
    ),
    Bug(
        "fence not checked on release",
        "core/task/attempts.py",
        _held("release", "Release"),
        "def release(step: Step, command: c.Release) -> Decision:\n",
    ),
    Bug(
        "fence not checked on a checkpoint",
        "core/task/attempts.py",
        _held("save_checkpoint", "SaveCheckpoint"),
        "def save_checkpoint(step: Step, command: c.SaveCheckpoint) -> Decision:\n",
    ),
    Bug(
        "event not committed with its row",
        "adapters/memory/ledger.py",
        "        self._store.record(events)\n",
        "        self._store.record([e for e in events if e.type != 'Task Released'])\n",
    ),
    Bug(
        "own lost answer taken for a conflict",
        "adapters/memory/ledger.py",
        "if row is not None and row.change_id == change.row.change_id:",
        "if False:",
    ),
    Bug(
        "row written over without looking at its version",
        "adapters/memory/ledger.py",
        "if change.expected_version != (row.version if row else 0):",
        "if change.expected_version > (row.version if row else 0):",
    ),
    Bug(
        "attempt number used twice after a resume",
        "core/task/wishes.py",
        '"attempts_used": 0,\n        "failure": None,',
        '"attempts_used": 0,\n        "attempt": 0,\n        "failure": None,',
    ),
    Bug(
        "fence used twice",
        "core/lease.py",
        "return max(last, epoch << EPOCH_BITS) + 1",
        "return max(last, epoch << EPOCH_BITS, 1)",
    ),
    Bug(
        "late event of an old round believed",
        "core/job.py",
        "and task.round < intent.round",
        "and task.round > intent.round",
    ),
    Bug(
        "message deleted before the claim is committed",
        "services/worker/worker.py",
        "        sent_at, nudges = self._backend.clock.elapsed(), self._nudges\n",
        "        sent_at, nudges = self._backend.clock.elapsed(), self._nudges\n"
        "        await self._backend.queue.delete([message.receipt])\n",
    ),
    Bug(
        "message deleted before the outcome is committed",
        "services/worker/worker.py",
        "        attempt = Attempt(self._tools, claimed, sent_at)\n",
        "        attempt = Attempt(self._tools, claimed, sent_at)\n"
        "        await self._backend.queue.delete([message.receipt])\n",
    ),
    Bug(
        "lease renewed after it ran out",
        "core/task/attempts.py",
        "    if not lease.live(step.now):\n",
        "    if False:\n",
    ),
    Bug(
        "dependents sent on before their parent completed",
        "services/dispatcher.py",
        "            if row.state is TaskState.COMPLETED:\n                for key",
        "            if True:\n                for key",
    ),
    Bug(
        "dead letter made of a live task",
        "core/task/attempts.py",
        "if row.lease is not None and not over(row.lease, now=step.now, margin=command.margin):",
        "if False:",
    ),
    Bug(
        "end of a job told twice",
        "core/job.py",
        "        if after.untold:\n",
        "        if after.untold or fresh:\n",
    ),
    Bug(
        "failure of a job told each time",
        "core/job.py",
        "    if fresh and row.failure_told_in < row.round:\n",
        "    if fresh:\n",
    ),
    Bug(
        "a release costs an attempt",
        "core/task/attempts.py",
        "        released,\n        effects=(step.ring(step.now),),\n",
        "        released,\n        effects=(step.ring(step.now),),\n"
        "        attempts_used=row.attempts_used + 1,\n",
    ),
    Bug(
        "attempts are not counted",
        "core/task/attempts.py",
        "    used = row.attempts_used + counts\n",
        "    used = row.attempts_used + (counts and step.context.origin == 'worker')\n",
    ),
    Bug(
        "taken over before the lease is over",
        "core/lease.py",
        "    return now >= lease.expires_at + margin\n",
        "    return now >= lease.expires_at - 4 * margin\n",
    ),
    Bug(
        "worker does not fence itself",
        "services/worker/attempt.py",
        "        while (left := self._trusted_until - clock.elapsed()) > timedelta(0):\n"
        "            await clock.sleep(left)\n",
        "        while True:\n            await clock.sleep(timedelta(days=1))\n",
    ),
    Bug(
        "child started after the lease can be trusted",
        "services/worker/attempt.py",
        "        if not self._trusted:\n",
        "        if False:\n",
    ),
    Bug(
        "earlier steps forgotten when one is kept",
        "services/worker/attempt.py",
        '"previous": self.row.checkpoint}',
        '"previous": None}',
    ),
    Bug(
        "child told that a step is kept before it is",
        "services/worker/attempt.py",
        "        try:\n            await self._tell(c.SaveCheckpoint(fence=self.fence, key=key))\n",
        "        await child.step_kept(name)\n        try:\n"
        "            await self._tell(c.SaveCheckpoint(fence=self.fence, key=key))\n",
    ),
    Bug(
        "outcome told before its output is stored",
        "services/worker/output.py",
        "            if self._waiting:\n                await self._log.append",
        "            if False:\n                await self._log.append",
    ),
    Bug(
        "a task that runs is cancelled at once",
        "core/task/wishes.py",
        "    if row.lease is None:\n        return cancelled(step, request)\n",
        "    if True:\n        return cancelled(step, request)\n",
    ),
    Bug(
        "a resumed task does not wait for its parents",
        "core/task/wishes.py",
        "if left := row.awaits - command.completed:",
        "if left := row.awaits - row.awaits:",
    ),
    Bug(
        "a half-created job is forgotten",
        "services/producer.py",
        "            intent=intent,\n        )\n        await self._transitions.commit(",
        "        )\n        await self._transitions.commit(",
    ),
    Bug(
        "a half-done addition is forgotten",
        "services/adding.py",
        "command = replace(command, graph=graph, intent=intent)",
        "command = replace(command, graph=graph)",
    ),
    Bug(
        "a request adds its tasks again",
        "services/adding.py",
        "if (known := graph.added_by(mark)) is not None:",
        "if (known := graph.added_by(mark)) is not None and known is None:",
    ),
    Bug(
        "a task is added behind a failure and counted as able to run",
        "services/adding.py",
        "blocked=planned.graph.behind(job.failed | job.cancelled) & wanted.numbers,",
        "",
    ),
    Bug(
        "an added task waits for nobody",
        "core/planning.py",
        "NumberSet(self.parents_of(place)) - self._site.completed)",
        "NumberSet())",
    ),
    Bug(
        "nobody finishes what is half done",
        "services/sweeper.py",
        "            self._finish_intents,\n",
        "",
    ),
    Bug(
        "nobody rings again",
        "services/sweeper.py",
        "        await self._ring_again()\n",
        "",
    ),
    Bug(
        "a completed task is run again by its message",
        "core/judgement.py",
        "            TaskState.COMPLETED\n            | TaskState.FAILED\n",
        "            TaskState.FAILED\n",
    ),
    Bug(
        "the event log is believed, not the row",
        "services/dispatcher.py",
        "ended = [row for row in await self._rows(heard) if row.state.terminal]",
        "ended = [row for row in await self._rows(heard)]",
    ),
)
