"""Bugs of what people want and hear: cancel, review, pause, and the health check's alerts."""

from tests.simulation.bugs_of_tasks import Bug

_CANCELLED = (
    "    if step.row.cancel is not None:\n"
    "        return cancelled(\n"
    "            step, step.row.cancel, usage=command.usage, last_output=command.last_output\n"
    "        )\n"
)
_HEARD_OF_PAUSE = (
    "                self._called_off.set()\n"
    "                self._slot_freed.set()\n"
    "            except BackendUnavailable as error:\n"
    '                logger.warning("pauses.unavailable"'
)
_SLEEPS = "                await self._backend.clock.sleep(20 * _AFTER_TROUBLE)\n"

BUGS_OF_WISHES = (
    Bug(
        "a cancelled task is tried again when its attempt fails",
        "core/task/attempts.py",
        _CANCELLED,
        "",
    ),
    Bug(
        "a cancelled job goes on where it was not yet begun",
        "services/cancelling.py",
        "        wanted = NumberSet.up_to(job.total) - job.ended if numbers is None else numbers\n",
        "        wanted = NumberSet.up_to(job.total - 1) - job.ended\n",
    ),
    Bug(
        "a cancellation passes over a resume that is under way",
        "services/cancelling.py",
        "            if (finish := self._others.get(intent.kind)) is not None:\n",
        "            finish = self._others.get(intent.kind)\n"
        "            if finish is not None and intent.kind is not IntentKind.RESUME:\n",
    ),
    Bug(
        "an approval is of whatever is in review",
        "core/task/wishes.py",
        "    if command.attempt is not None and command.attempt != row.attempt:\n",
        "    if False:\n",
    ),
    Bug(
        "whoever approves does not wait for what follows",
        "services/reviewing.py",
        "        await self._dispatcher.settle([task_id])\n",
        "",
    ),
    Bug(
        "a paused queue is served",
        "services/worker/worker.py",
        "        paused = self._policy.queues if self._paused is None else self._paused\n",
        "        paused = self._policy.queues if self._paused is None else frozenset()\n",
    ),
    Bug(
        "a pause is looked for only now and then",
        "services/worker/worker.py",
        _HEARD_OF_PAUSE,
        _HEARD_OF_PAUSE.replace("            except", _SLEEPS + "            except"),
    ),
    Bug(
        "a problem is told at every check",
        "core/alerting.py",
        "    return last.over and task.health.urgent\n",
        "    return True\n",
    ),
    Bug(
        "dead letters are told at every check",
        "core/piles.py",
        "    return PileNews.STILL if cooled(last.at, now, cool_down) else None\n",
        "    return PileNews.STILL\n",
    ),
    Bug(
        "an alert that was not taken counts as told",
        "services/alerting.py",
        "if notice and not await self._sent(channel, notice):",
        "if notice and not await self._sent(channel, notice) and not notice:",
    ),
    Bug(
        "what was told is not kept",
        "services/alerting.py",
        "        if told:\n            await self._blobs.put(",
        "        if False:\n            await self._blobs.put(",
    ),
    Bug(
        "nobody is told that a problem is over",
        "core/alerting.py",
        "            if not last.over and task_id not in problems\n",
        "            if not last.over and task_id not in problems and last.attempt > 1\n",
    ),
    Bug(
        "a channel that hangs holds up the check",
        "services/alerting.py",
        "asyncio.ensure_future(self._clock.sleep(self._within))",
        "asyncio.ensure_future(self._clock.sleep(1000 * self._within))",
    ),
)
