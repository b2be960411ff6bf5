"""Faults that the contract of the queues' pauses, and a worker's tests of them, must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteQueues"
_MEMORY = "contract/test_memory.py::TestMemoryQueues"
_KEPT = "adapters/sqlite/test_queues.py"
_PAUSING = "unit/services/test_pausing.py"
_WORKER = "unit/services/test_worker_pauses.py"

_fault = partial(Fault, part=Part.QUEUES)
_in_sqlite = partial(_fault, file="adapters/sqlite/queues.py")
_in_memory = partial(_fault, file="adapters/memory/queues.py")
_in_crew = partial(_fault, file="services/crew.py")
_in_pausing = partial(_fault, file="services/pausing.py")
_in_worker = partial(_fault, file="services/worker/worker.py")

PAUSE_FAULTS = (
    _in_sqlite(
        name="a later pause takes the place of the first",
        old="ON CONFLICT DO NOTHING",
        new="ON CONFLICT DO UPDATE SET paused_by = excluded.paused_by",
        caught_by=f"{_SQLITE}::test_of_two_pauses_the_first_counts",
    ),
    _in_sqlite(
        name="a pause rings no bell",
        old="return _paused(await self._database.write(work, topics=(Topic.PAUSES,)))",
        new="return _paused(await self._database.write(work))",
        caught_by=f"{_SQLITE}::test_who_waits_is_told_of_a_pause_and_of_its_end",
    ),
    _in_sqlite(
        name="a resume rings no bell",
        old="ended = await self._database.write(work, topics=(Topic.PAUSES,))",
        new="ended = await self._database.write(work)",
        caught_by=f"{_SQLITE}::test_who_waits_is_told_of_a_pause_and_of_its_end",
    ),
    _in_sqlite(
        name="a resume may be lost with the power",
        old="ended = await self._database.write(work, topics=(Topic.PAUSES,))",
        new="ended = await self._database.write(work, promised=False, topics=(Topic.PAUSES,))",
        caught_by=f"{_KEPT}::test_pauses_and_their_ends_are_promised",
    ),
    _in_sqlite(
        name="a resume ends every pause",
        old="WHERE name = ? RETURNING",
        new="WHERE ?1 = ?1 RETURNING",
        caught_by=f"{_SQLITE}::test_a_queue_is_resumed_and_the_pause_that_ended_is_told",
    ),
    _in_sqlite(
        name="pauses are listed from the last to the first",
        old="ORDER BY name",
        new="ORDER BY name DESC",
        caught_by=f"{_SQLITE}::test_pauses_are_listed_by_the_name_of_the_queue",
    ),
    _in_sqlite(
        name="the name of a paused queue is not taken at its word",
        old='"SELECT 1 FROM paused_queues WHERE name = ?"',
        new='"SELECT 1 FROM paused_queues WHERE name LIKE ?"',
        caught_by=f"{_SQLITE}::test_a_pause_is_of_one_queue_only",
    ),
    _in_sqlite(
        name="the end of a pause is not told",
        old="return found if found != known else None",
        new="return found if known is None or found - known else None",
        caught_by=f"{_SQLITE}::test_who_waits_is_told_of_a_pause_and_of_its_end",
    ),
    _in_sqlite(
        name="what is known already is told again and again",
        old="return found if found != known else None",
        new="return found",
        caught_by=f"{_SQLITE}::test_who_waits_is_not_told_of_other_queues_or_of_nothing_new",
    ),
    _in_memory(
        name="a later pause takes the place of the first in memory",
        old="held = self._paused.setdefault(name, PausedQueue(",
        new="held = self._paused[name] = (PausedQueue(",
        caught_by=f"{_MEMORY}::test_of_two_pauses_the_first_counts",
    ),
    _in_memory(
        name="a pause wakes nobody in memory",
        old="        self._waiters.wake()\n        return held\n",
        new="        return held\n",
        caught_by=f"{_MEMORY}::test_who_waits_is_told_of_a_pause_and_of_its_end",
    ),
    _in_memory(
        name="a resume wakes nobody in memory",
        old="        self._waiters.wake()\n        return ended\n",
        new="        return ended\n",
        caught_by=f"{_MEMORY}::test_who_waits_is_told_of_a_pause_and_of_its_end",
    ),
    _in_memory(
        name="pauses are listed as they came in memory",
        old="sorted(self._paused.values(), key=lambda paused: paused.name)",
        new="list(self._paused.values())",
        caught_by=f"{_MEMORY}::test_pauses_are_listed_by_the_name_of_the_queue",
    ),
    _in_worker(
        name="a paused queue is asked for work",
        old="tuple(queue for queue in self._policy.queues if queue not in paused)",
        new="self._policy.queues if paused is not self._policy.queues else ()",
        caught_by=f"{_WORKER}::"
        "test_a_queue_that_is_paused_while_a_worker_waits_is_not_asked_until_it_is_resumed",
    ),
    _in_worker(
        name="what is not known to be paused is asked for work",
        old="paused = self._policy.queues if self._paused is None else self._paused",
        new="paused = self._paused or frozenset()",
        caught_by=f"{_WORKER}::test_a_worker_that_cannot_know_what_is_paused_begins_nothing",
    ),
    _in_worker(
        name="one paused queue of a worker stops all of them",
        old="tuple(queue for queue in self._policy.queues if queue not in paused)",
        new="() if paused else self._policy.queues",
        caught_by=f"{_WORKER}::test_other_queues_of_a_worker_are_served_meanwhile",
    ),
    _in_worker(
        name="a queue that is paused is waited for all the same",
        old="                self._called_off.set()\n                self._slot_freed.set()\n",
        new="                self._slot_freed.set()\n",
        caught_by=f"{_WORKER}::test_other_queues_of_a_worker_are_served_meanwhile",
    ),
    _in_worker(
        name="a worker without any queue sleeps through the resume",
        old="                self._called_off.set()\n                self._slot_freed.set()\n",
        new="                self._called_off.set()\n",
        caught_by=f"{_WORKER}::"
        "test_a_worker_that_starts_while_its_queue_is_paused_asks_for_nothing",
    ),
    _in_worker(
        name="what is delivered just when its queue is paused is begun",
        old="if self._stopping.is_set() or message.queue not in self._served:",
        new="if self._stopping.is_set():",
        caught_by=f"{_WORKER}::"
        "test_what_is_delivered_just_when_a_worker_hears_of_the_pause_is_given_back",
    ),
    _in_worker(
        name="a bug where pauses are kept makes a worker deaf to them",
        old='                logger.exception("pauses.broken")\n',
        new="                raise\n",
        caught_by=f"{_WORKER}::test_a_worker_that_cannot_know_what_is_paused_begins_nothing",
    ),
    _in_worker(
        name="a worker that waits for work does not hear that it is to stop",
        old="        self._called_off.set()\n\n    def cancel",
        new="\n    def cancel",
        caught_by=f"{_WORKER}::test_a_worker_that_waits_for_work_stops_at_once",
    ),
    _in_pausing(
        name="a queue of any name is paused",
        old="    if not is_name(name):\n",
        new="    if False:\n",
        caught_by=f"{_PAUSING}::test_what_no_queue_can_be_called_is_refused_and_changes_nothing",
    ),
    _in_pausing(
        name="a reason of any length is kept",
        old="if reason and (problem := problem_of_remark(reason, limit=REASON_LIMIT_CHARACTERS)):",
        new='if problem := "":',
        caught_by=f"{_PAUSING}::test_a_reason_that_cannot_be_kept_is_refused_and_changes_nothing",
    ),
    _in_pausing(
        name="who resumed nothing is told to have done it",
        old="        if ended is not None:\n",
        new="        if (ended := ended or PausedQueue(name=name, by=by, reason=None,"
        " at=self._clock.now())):\n",
        caught_by=f"{_PAUSING}::test_who_resumed_a_queue_is_in_the_log",
    ),
    _in_crew(
        name="what runs is not waited for when its queue is paused",
        old="((TaskState.PROCESSING, queues), (",
        new="((TaskState.PROCESSING, served), (",
        caught_by=f"{_WORKER}::test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is",
    ),
    _in_crew(
        name="what lies on a paused queue is waited for",
        old="(TaskState.PENDING, served))",
        new="(TaskState.PENDING, queues))",
        caught_by=f"{_WORKER}::test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is",
    ),
)
