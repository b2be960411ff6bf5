"""Faults that the contract of the queues' pauses, and a worker's tests of them, must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteQueues"
_MEMORY = "contract/test_memory.py::TestMemoryQueues"
_KEPT = "adapters/sqlite/test_queues.py"
_PAUSING = "unit/services/test_pausing.py"
_WORKER = "unit/services/test_worker_pauses.py"
_SQLITE_HOLDS = "contract/test_sqlite.py::TestSqliteHolds"
_MEMORY_HOLDS = "contract/test_memory.py::TestMemoryHolds"
_HOLDS = "unit/services/test_worker_holds.py"

_fault = partial(Fault, part=Part.QUEUES)
_in_sqlite = partial(_fault, file="adapters/sqlite/queues.py")
_in_memory = partial(_fault, file="adapters/memory/queues.py")
_in_crew = partial(_fault, file="services/crew.py")
_in_ports = partial(_fault, file="ports/queues.py")
_in_holding = partial(_fault, file="services/worker/holding.py")
_in_pausing = partial(_fault, file="services/pausing.py")
_in_worker = partial(_fault, file="services/worker/worker.py")

HOLD_FAULTS = (
    _in_sqlite(
        name="a hold rings no bell",
        old="self._database.write(work, promised=False, topics=(Topic.PAUSES,))",
        new="self._database.write(work, promised=False)",
        caught_by=f"{_SQLITE_HOLDS}::test_who_waits_is_told_of_a_hold_and_of_its_end_by_itself",
    ),
    _in_sqlite(
        name="a hold is waited for until it is on disk",
        old="self._database.write(work, promised=False, topics=(Topic.PAUSES,))",
        new="self._database.write(work, topics=(Topic.PAUSES,))",
        caught_by=f"{_KEPT}::test_nobody_waits_until_a_hold_is_on_disk",
    ),
    _in_sqlite(
        name="a shorter hold takes the place of a longer one",
        old="WHERE until_us < excluded.until_us OR until_us > ?",
        new="WHERE ? > 0",
        caught_by=f"{_SQLITE_HOLDS}::test_of_two_holds_the_one_that_lasts_longer_counts",
    ),
    _in_sqlite(
        name="a hold of a clock that was ahead keeps others away",
        old="WHERE until_us < excluded.until_us OR until_us > ?",
        new="WHERE until_us < excluded.until_us OR ? < 0",
        caught_by=f"{_SQLITE_HOLDS}::"
        "test_a_hold_of_a_clock_that_was_far_ahead_is_nothing_and_gives_way",
    ),
    _in_sqlite(
        name="a resume leaves the hold",
        old="DELETE FROM held_queues WHERE name = ?",
        new="DELETE FROM held_queues WHERE name || '' <> ?",
        caught_by=f"{_SQLITE_HOLDS}::test_to_resume_a_queue_ends_its_pause_and_its_hold",
    ),
    _in_memory(
        name="a shorter hold takes the place of a longer one in memory",
        old="or there.left(now) < hold.left(now)",
        new="or True",
        caught_by=f"{_MEMORY_HOLDS}::test_of_two_holds_the_one_that_lasts_longer_counts",
    ),
    _in_memory(
        name="nobody wakes up when a hold ends in memory",
        old="until(look, next_change=next_end)",
        new="until(look)",
        caught_by=f"{_MEMORY_HOLDS}::test_who_waits_is_told_of_a_hold_and_of_its_end_by_itself",
    ),
    _in_memory(
        name="a resume leaves the hold in memory",
        old="self._held.pop(name, None)",
        new="self._held.get(name)",
        caught_by=f"{_MEMORY_HOLDS}::test_to_resume_a_queue_ends_its_pause_and_its_hold",
    ),
    _in_ports(
        name="a hold lasts one tick longer than it says",
        old="timedelta(0) < self.left(now)",
        new="timedelta(0) <= self.left(now)",
        caught_by=f"{_MEMORY_HOLDS}::test_a_hold_is_over_at_its_moment_and_then_is_nothing",
    ),
    _in_ports(
        name="a hold lasts as long as anybody wants",
        old="min(until, now + LONGEST_HOLD)",
        new="until",
        caught_by=f"{_MEMORY_HOLDS}::test_no_hold_lasts_longer_than_the_longest",
    ),
    _in_holding(
        name="whatever is turned away holds its queue",
        old="if runner is not RunnerKind.AGENT or not",
        new="if not",
        caught_by=f"{_HOLDS}::test_a_task_that_no_agent_does_holds_up_nobody",
    ),
    _in_holding(
        name="any trouble that names a time holds the queue",
        old="if failure.category is not ErrorCategory.RATE_LIMIT or failure",
        new="if failure",
        caught_by=f"{_HOLDS}::test_nothing_else_that_happens_to_an_agent_holds_its_queue",
    ),
    _in_holding(
        name="a queue is held for as long as the API wants",
        old="min(_asked_for(runner, outcome), tools.longest_hold)",
        new="_asked_for(runner, outcome)",
        caught_by=f"{_HOLDS}::test_a_hold_lasts_no_longer_than_was_asked_for_nor_than_it_may",
    ),
    _in_crew(
        name="a hold that ends soon is not waited for",
        old="if one.holds(soon)",
        new="if True",
        caught_by=f"{_HOLDS}::"
        "test_who_waits_for_the_end_of_all_work_waits_for_a_hold_that_ends_soon",
    ),
)

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
        old="DELETE FROM paused_queues WHERE name = ?",
        new="DELETE FROM paused_queues WHERE ?1 = ?1",
        caught_by=f"{_SQLITE}::test_a_queue_is_resumed_and_the_pause_that_ended_is_told",
    ),
    _in_sqlite(
        name="pauses are listed from the last to the first",
        old="ORDER BY name,",
        new="ORDER BY name DESC,",
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
        old="key=lambda paused: paused.name\n",
        new="key=lambda paused: 0\n",
        caught_by=f"{_MEMORY}::test_pauses_are_listed_by_the_name_of_the_queue",
    ),
    *HOLD_FAULTS,
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
