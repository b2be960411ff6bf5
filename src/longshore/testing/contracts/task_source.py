"""The contract of the ``TaskSource``: claims, turns, instances and wake-ups.

A suite is run over each kind of source. A subclass says how to build one for a backend; where the
backend has its own, ``make_source`` is not needed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import pytest

from longshore.core.claims import Room
from longshore.core.documents import Document
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, Priority, TaskState
from longshore.errors import BackendRejected, WorkerGone
from longshore.ports.backend import Backend
from longshore.ports.task_source import (
    Applied,
    ClaimedTask,
    LeaseCommand,
    TaskSource,
    WorkerInstance,
)
from longshore.services.message_source import MessageTaskSource
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    commit,
    commit_job,
    fresh_change_id,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import (
    CALLERS,
    NO_WAIT,
    START,
    PortContract,
    clause,
    gather_all,
    running,
    settle,
    without_time_passing,
)

LEASE = timedelta(seconds=45)
SECOND = timedelta(seconds=1)
_turns = count(1)


def source_of(backend: Backend) -> TaskSource:
    """The backend's own source, or the one that services build from its queue."""
    return backend.source or MessageTaskSource(
        backend=backend,
        transitions=Transitions(
            backend=backend, documents=DocumentStore(backend.blobs), new_id=fresh_change_id
        ),
        lease=LeasePolicy(),
        tenant="acme",
        app="shop",
    )


class Worker:
    """A worker that has joined a source."""

    def __init__(self, source: TaskSource, instance: WorkerInstance) -> None:
        self.source = source
        self.instance = instance

    async def claim(
        self, slots: int = 10, *, turn_id: str | None = None, wait: timedelta = NO_WAIT
    ) -> tuple[ClaimedTask, ...]:
        """Claim what is ready now."""
        return await self.source.claim(
            self.instance, Room(slots=slots), turn_id=turn_id or _turn_id(), wait=wait
        )

    async def send(self, *commands: LeaseCommand, **how: Any) -> list[Any]:
        """The answers to commands."""
        how.setdefault("turn_id", _turn_id())
        turn = await self.source.turn(self.instance, commands, **how)
        return list(turn.answers)


def _turn_id() -> str:
    return f"{next(_turns):012d}"


async def join(source: TaskSource, worker_id: str = "w1", *queues: str) -> Worker:
    """A worker that serves these queues (``default`` if none is named)."""
    worker = WorkerInstance(
        worker_id=worker_id, queues=queues or ("default",), process_id=7, lease_duration=LEASE
    )
    instance = await source.join(worker)
    await settle()  # a source that watches pauses has read them
    return Worker(source, instance)


def complete(row: TaskRow, *, change_id: str | None = None) -> LeaseCommand:
    """The outcome of a task that was claimed."""
    done = c.Complete(fence=row.fence, result=None, duration=SECOND, exit_code=0)
    return LeaseCommand(row.id, done, change_id or fresh_change_id())


def renew(row: TaskRow) -> LeaseCommand:
    """A renewal of a task that was claimed."""
    command = c.Renew(fence=row.fence, lease_duration=LEASE)
    return LeaseCommand(row.id, command, fresh_change_id())


async def _request_cancel(backend: Backend, task_id: str) -> None:
    await Transitions(
        backend=backend, documents=DocumentStore(backend.blobs), new_id=fresh_change_id
    ).apply_to_task(task_id, c.RequestCancel(by="ann"))


class Poison(c.Complete):
    """A command that cannot be decided."""


class TaskSourceContract(PortContract):
    """What holds for every source."""

    joint: ClassVar[bool]
    """Whether a turn can claim."""

    @clause
    async def test_a_ready_task_is_leased_to_the_worker(self, backend: Backend) -> None:
        source = source_of(backend)
        pending = await commit(backend, new_task())
        worker = await join(source)

        (task,) = await worker.claim()

        lease = task.row.lease
        assert lease is not None
        assert (lease.worker_id, task.row.state) == ("w1", TaskState.PROCESSING)
        assert (task.row.attempt, task.due_at) == (1, pending.due_at)
        assert await backend.ledger.get_task(pending.id) == task.row

    @clause
    async def test_no_more_are_claimed_than_there_are_slots(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(3):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)

        assert len(await worker.claim(2)) == 2
        assert len(await worker.claim(2)) == 1
        assert await worker.claim(2) == ()

    @clause
    async def test_a_task_is_not_claimed_before_it_is_due(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task(not_before=START + 60 * SECOND))
        worker = await join(source)

        assert await worker.claim() == ()
        clock.advance(61 * SECOND)
        assert len(await worker.claim()) == 1

    @clause
    async def test_only_queues_of_the_worker_are_served(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task(queue="agents"))
        other, worker = await join(source, "w1"), await join(source, "w2", "agents")

        assert await other.claim() == ()
        assert len(await worker.claim()) == 1

    @clause
    async def test_a_paused_queue_is_not_served_until_it_is_resumed(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        await backend.queue_controls.pause("default", by="ann", now=clock.now())
        await commit(backend, new_task())
        worker = await join(source)

        assert await worker.claim() == ()
        async with running(worker.claim(wait=60 * SECOND)) as waiting:
            assert not waiting.done()
            await backend.queue_controls.resume("default")
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_a_held_queue_is_not_served(self, backend: Backend, clock: FakeClock) -> None:
        source = source_of(backend)
        now = clock.now()
        await backend.queue_controls.hold(
            "default", until=now + 60 * SECOND, by="w2", reason="rate limit", now=now
        )
        await commit(backend, new_task())
        worker = await join(source)

        assert await worker.claim() == ()

    @clause
    async def test_a_claim_waits_for_the_first_task(self, backend: Backend) -> None:
        source = source_of(backend)
        worker = await join(source)

        async with running(worker.claim(wait=60 * SECOND)) as waiting:
            assert not waiting.done()
            await commit(backend, new_task())
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_a_cancelled_claim_leaves_nothing_claimed(self, backend: Backend) -> None:
        source = source_of(backend)
        worker = await join(source)
        async with running(worker.claim(wait=60 * SECOND)):
            pass

        await commit(backend, new_task())
        await settle()

        assert len(await worker.claim()) == 1

    @clause
    async def test_the_same_claim_again_gives_the_same_tasks(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        turn_id = _turn_id()

        first = await worker.claim(1, turn_id=turn_id)
        again = await worker.claim(1, turn_id=turn_id)

        assert [task.row for task in again] == [task.row for task in first]

    @clause
    async def test_two_workers_never_get_one_task(self, backend: Backend) -> None:
        source = source_of(backend)
        workers = [await join(source, f"w{number}") for number in range(CALLERS)]
        for turn in range(self.rounds):
            await commit(backend, new_task(f"t{turn}", number=turn))

            answers = await gather_all(worker.claim(1) for worker in workers)

            claimed = [task for answer in answers for task in answer]  # type: ignore[union-attr]
            assert len(claimed) == 1

    @clause
    async def test_urgent_lanes_come_first_and_none_is_left_out(self, backend: Backend) -> None:
        source = source_of(backend)
        for lane in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
            for number in range(8):
                await commit(backend, new_task(f"{lane.value}-{number}", priority=lane))
        worker = await join(source)

        lanes: Counter[Priority] = Counter()
        for _ in range(8):
            lanes.update(task.row.spec.priority for task in await worker.claim(1))

        assert lanes == {Priority.HIGH: 6, Priority.NORMAL: 1, Priority.LOW: 1}

    @clause
    async def test_an_outcome_is_committed_and_answered_with_the_row(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()

        (answer,) = await worker.send(complete(task.row))

        assert isinstance(answer, Applied)
        assert (answer.row.state, answer.row.lease) == (TaskState.COMPLETED, None)
        assert await backend.ledger.get_task(task.row.id) == answer.row
        assert (await source.depth("default")).hidden == 0

    @clause
    async def test_a_renewal_extends_the_lease(self, backend: Backend, clock: FakeClock) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        clock.advance(20 * SECOND)

        (answer,) = await worker.send(renew(task.row))

        assert isinstance(answer, Applied)
        assert answer.row.lease is not None
        assert task.row.lease is not None
        assert answer.row.lease.expires_at == task.row.lease.expires_at + 20 * SECOND

    @clause
    async def test_the_same_command_again_is_success_and_written_once(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        command = complete(task.row)

        (first,), (again,) = await worker.send(command), await worker.send(command)

        assert isinstance(first, Applied)
        assert again == first

    @clause
    async def test_commands_about_one_task_are_decided_one_after_the_other(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        first, second = await worker.claim()

        completed, released, renewed, ended = await worker.send(
            complete(first.row), _release(first), renew(second.row), complete(second.row)
        )

        assert isinstance(completed, Applied)
        assert isinstance(released, Refusal)
        assert isinstance(renewed, Applied)
        assert isinstance(ended, Applied)
        assert await backend.ledger.get_task(first.row.id) == completed.row
        assert await backend.ledger.get_task(second.row.id) == ended.row
        assert ended.row.version == second.row.version + 2

    @clause
    async def test_an_outcome_keeps_what_others_have_changed_since_the_claim(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        await _request_cancel(backend, task.row.id)

        (answer,) = await worker.send(complete(task.row))

        assert isinstance(answer, Applied)
        assert answer.row.version == task.row.version + 2
        assert answer.row == await backend.ledger.get_task(task.row.id)

    @clause
    async def test_the_same_turn_again_is_answered_alike(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        commands, turn_id = (complete(task.row),), _turn_id()

        first = await source.turn(worker.instance, commands, turn_id=turn_id)
        again = await source.turn(worker.instance, commands, turn_id=turn_id)

        assert again == first

    @clause
    async def test_a_stale_fence_changes_nothing(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (old,) = await worker.claim()
        await worker.send(_release(old))
        (new,) = await worker.claim()

        (answer,) = await worker.send(complete(old.row))

        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.LEASE_LOST
        assert await backend.ledger.get_task(new.row.id) == new.row

    @clause
    async def test_a_command_about_no_task_is_refused(self, backend: Backend) -> None:
        source = source_of(backend)
        worker = await join(source)
        missing = LeaseCommand("job-one_none", c.SaveCheckpoint(fence=1, key="k"), "change")

        (answer,) = await worker.send(missing)

        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.UNKNOWN

    @clause
    async def test_a_command_that_cannot_be_decided_does_not_affect_the_others(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        bad, good = await worker.claim()
        poison = Poison(fence=bad.row.fence, result=None, duration=SECOND)

        answers = await worker.send(
            LeaseCommand(bad.row.id, poison, fresh_change_id()), complete(good.row)
        )

        assert isinstance(answers[0], BackendRejected)
        assert isinstance(answers[1], Applied)
        assert await backend.ledger.get_task(bad.row.id) == bad.row

    @clause
    async def test_a_task_released_before_it_has_begun_keeps_its_position_and_its_attempts(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        pending = await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        clock.advance(10 * SECOND)

        (answer,) = await worker.send(_release(task))

        assert isinstance(answer, Applied)
        assert (answer.row.state, answer.row.attempts_used) == (TaskState.PENDING, 0)
        assert pending.due_at is not None
        assert answer.row.due_at is not None
        assert abs(answer.row.due_at - pending.due_at) < timedelta(milliseconds=1)
        (again,) = await worker.claim()
        assert again.row.attempt == 2

    @clause
    async def test_the_leases_of_a_worker_that_is_gone_are_ended(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        begun, waiting = await worker.claim()

        unbegun = [(waiting.row.id, waiting.row.fence), (begun.row.id, begun.row.fence - 1)]
        ended = await source.end_worker("w1", unbegun=unbegun)

        used = {row.id: row.attempts_used for row in ended}
        assert used == {begun.row.id: 1, waiting.row.id: 0}
        assert all(row.state is TaskState.PENDING for row in ended)

    @clause
    async def test_without_a_list_all_tasks_of_a_worker_that_is_gone_had_begun(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        await join(source, "w2")
        await worker.claim()

        assert await source.end_worker("w2") == []
        (ended,) = await source.end_worker("w1")

        assert ended.attempts_used == 1

    @clause
    async def test_a_turn_claims_only_where_the_source_says_so(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        (task,) = await worker.claim(1)

        turn = await source.turn(
            worker.instance, [complete(task.row)], turn_id=_turn_id(), room=Room(slots=1)
        )

        assert source.claims_with_commands is self.joint
        assert len(turn.claimed) == (1 if self.joint else 0)


class DirectSourceContract(TaskSourceContract):
    """What holds for a source that leases tasks without messages."""

    joint = True

    @clause
    async def test_tenants_get_equal_parts_of_a_batch(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(8):
            await commit(backend, new_task(f"a{number}", number=number))
        for number in range(2):
            await commit(backend, new_task(f"b{number}", number=8 + number, tenant="other"))
        worker = await join(source)

        tenants = Counter(task.row.spec.tenant for task in await worker.claim(4))

        assert tenants == {"acme": 2, "other": 2}

    @pytest.mark.parametrize("ahead", [0, 4], ids=["fork", "pool"])
    @pytest.mark.parametrize(
        ("lane", "own_lane"),
        [
            (Priority.NORMAL, Priority.NORMAL),
            (Priority.HIGH, Priority.HIGH),
            (Priority.LOW, Priority.LOW),
            (Priority.HIGH, Priority.LOW),
            (Priority.LOW, Priority.HIGH),
        ],
    )
    @pytest.mark.parametrize(("others", "backlog"), [(1, 120), (2, 60), (50, 4)])
    @clause
    async def test_a_tenant_does_not_wait_for_the_backlog_of_others(
        self,
        backend: Backend,
        ahead: int,
        lane: Priority,
        own_lane: Priority,
        others: int,
        backlog: int,
    ) -> None:
        source, tenants = source_of(backend), [f"tenant-{number:02d}" for number in range(others)]
        for tenant in tenants:
            for number in range(backlog):
                task = new_task(
                    f"t{number}",
                    job_id=f"job-{tenant}",
                    number=number,
                    tenant=tenant,
                    priority=lane,
                )
                await commit(backend, task)
        worker = await join(source)
        short = {(tenant, "resize", 1): ahead for tenant in (*tenants, "own") if ahead}
        room, begun = Room(slots=2, ahead=short), 0
        claimed = await source.claim(worker.instance, room, turn_id=_turn_id(), wait=NO_WAIT)
        own = new_task("own", job_id="job-own", number=0, tenant="own", priority=own_lane)
        await commit(backend, own)

        while True:
            await worker.send(*(complete(task.row) for task in claimed))
            claimed = await source.claim(worker.instance, room, turn_id=_turn_id(), wait=NO_WAIT)
            if any(task.row.spec.tenant == "own" for task in claimed):
                break
            begun += len(claimed)

        # Each other tenant has one turn before, and of eight tasks one is from a less urgent lane.
        assert begun <= max(others, 8)

    @clause
    async def test_a_candidate_that_is_not_due_takes_no_slot(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task("later", tenant="aaa", not_before=START + 60 * SECOND))
        now = await commit(backend, new_task("now"))
        worker = await join(source)

        (task,) = await worker.claim(1)

        assert task.row.id == now.id

    @clause
    async def test_a_task_that_is_not_due_is_not_claimed_with_one_that_is(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        now = await commit(backend, new_task("now"))
        await commit(backend, new_task("later", number=1, not_before=START + 60 * SECOND))
        worker = await join(source)

        claimed = await worker.claim(2)

        assert [task.row.id for task in claimed] == [now.id]

    @clause
    async def test_known_short_tasks_are_claimed_ahead_of_free_slots(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        rows = [await commit(backend, new_task(f"t{number}", number=number)) for number in range(4)]
        spec = rows[0].spec
        worker = await join(source)
        short = (spec.tenant, spec.definition, spec.definition_version)

        claimed = await source.claim(
            worker.instance, Room(slots=1, ahead={short: 2}), turn_id=_turn_id(), wait=NO_WAIT
        )

        assert len(claimed) == 3

    @clause
    async def test_a_worker_whose_leases_were_ended_must_join_again(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        await source.end_worker("w1")

        with pytest.raises(WorkerGone):
            await worker.claim()
        with pytest.raises(WorkerGone):
            await worker.send(renew(task.row))
        (late,) = await worker.send(complete(task.row))
        again = await join(source)

        assert isinstance(late, Refusal)
        assert again.instance.number > worker.instance.number
        assert len(await again.claim()) == 1

    @clause
    async def test_an_expired_lease_ends_the_worker_and_its_other_outcomes_still_count(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        lost, other = await worker.claim()
        clock.advance(LEASE)
        await Transitions(
            backend=backend, documents=DocumentStore(backend.blobs), new_id=fresh_change_id
        ).apply_to_task(lost.row.id, c.LeaseEnded(fence=lost.row.fence, margin=NO_WAIT))

        with pytest.raises(WorkerGone):
            await worker.claim()
        (answer,) = await worker.send(complete(other.row))

        assert isinstance(answer, Applied)

    @clause
    async def test_a_later_instance_replaces_an_earlier_one(self, backend: Backend) -> None:
        source = source_of(backend)
        first = await join(source)
        second = await join(source)
        await commit(backend, new_task())

        with pytest.raises(WorkerGone):
            await first.claim()
        assert len(await second.claim()) == 1

    @clause
    async def test_a_waiting_claim_of_an_ended_worker_fails(self, backend: Backend) -> None:
        source = source_of(backend)
        worker = await join(source)

        async with running(worker.claim(wait=60 * SECOND)) as waiting:
            await source.end_worker("w1")
            with pytest.raises(WorkerGone):
                await without_time_passing(waiting)
        async with running(worker.claim(wait=60 * SECOND)) as late:
            with pytest.raises(WorkerGone):
                await without_time_passing(late)

    @clause
    async def test_the_same_turn_again_claims_the_same_tasks(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(4):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        (task, _) = await worker.claim(2)
        commands, turn_id = [complete(task.row)], _turn_id()

        first, again = [
            await source.turn(worker.instance, commands, turn_id=turn_id, room=Room(slots=1))
            for _ in range(2)
        ]

        assert len(first.claimed) == 1
        assert again.answers == first.answers
        claims = [[(task.row, task.due_at) for task in turn.claimed] for turn in (first, again)]
        assert claims[0] == claims[1]

    @clause
    async def test_a_turn_that_arrives_after_a_later_one_is_not_carried_out(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        (task,) = await worker.claim()
        early, late = _turn_id(), _turn_id()
        first, second = (_checkpoint(task.row, key) for key in ("first", "second"))
        await worker.send(first, turn_id=early)
        await worker.send(second, turn_id=late)

        await asyncio.gather(worker.send(first, turn_id=early), return_exceptions=True)

        row = await backend.ledger.get_task(task.row.id)
        assert row is not None
        assert row.checkpoint == "second"

    @clause
    async def test_a_claim_that_arrives_after_a_later_one_takes_nothing(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        early, late = _turn_id(), _turn_id()
        await worker.claim(1, turn_id=late)

        assert await worker.claim(1, turn_id=early) == ()
        assert (await source.depth("default")).ready == 1

    @clause
    async def test_the_turns_of_a_new_instance_are_counted_anew(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(3):
            await commit(backend, new_task(f"t{number}", number=number))
        early = _turn_id()
        first = await join(source)
        await first.send(turn_id=_turn_id())
        await first.claim(1)

        second = await join(source)
        await second.send(turn_id=early)

        assert len(await second.claim(1, turn_id=early)) == 1

    @clause
    async def test_a_worker_that_has_left_claims_nothing(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await join(source)
        await source.leave(worker.instance)

        with pytest.raises(WorkerGone):
            await worker.claim()
        with pytest.raises(WorkerGone):
            await worker.send(room=Room(slots=1))

    @clause
    async def test_a_turn_claims_nothing_of_a_paused_queue(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        await backend.queue_controls.pause("default", by="ann", now=clock.now())
        await commit(backend, new_task())
        worker = await join(source)

        turn = await source.turn(worker.instance, [], turn_id=_turn_id(), room=Room(slots=1))

        assert turn.claimed == ()

    @clause
    async def test_a_task_that_is_released_wakes_a_claim(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker, other = await join(source), await join(source, "w2")
        (task,) = await worker.claim()

        async with running(other.claim(wait=60 * SECOND)) as waiting:
            await worker.send(_release(task))
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_the_end_of_a_worker_wakes_a_claim(self, backend: Backend) -> None:
        source = source_of(backend)
        await commit(backend, new_task())
        worker, other = await join(source), await join(source, "w2")
        await worker.claim()

        async with running(other.claim(wait=60 * SECOND)) as waiting:
            await source.end_worker("w1")
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_a_claim_waits_until_a_task_is_due(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        await commit(backend, new_task(not_before=START + 0.3 * SECOND))
        worker = await join(source)

        async with running(worker.claim(wait=60 * SECOND)) as waiting:
            assert not waiting.done()
            clock.advance(0.3 * SECOND)
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_a_claim_waits_until_a_hold_ends(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        now = clock.now()
        until = now + 0.3 * SECOND
        await backend.queue_controls.hold("default", until=until, by="w2", reason="limit", now=now)
        await commit(backend, new_task())
        worker = await join(source)

        async with running(worker.claim(wait=60 * SECOND)) as waiting:
            assert not waiting.done()
            clock.advance(0.3 * SECOND)
            assert len(await without_time_passing(waiting)) == 1

    @clause
    async def test_a_turn_makes_a_dependent_ready_after_its_last_parent_and_ends_the_job(
        self, backend: Backend
    ) -> None:
        source = source_of(backend)
        job = await _commit_job_of_three(backend, dependents=_document('["c"]'))
        worker = await join(source)
        first, second = await worker.claim()

        for parent, ready in ((first, 0), (second, 1)):
            turn = await source.turn(
                worker.instance, [complete(parent.row)], turn_id=_turn_id(), room=Room(slots=9)
            )
            assert len(turn.claimed) == ready
        before = await backend.ledger.get_job(job.id)
        await worker.send(complete(turn.claimed[0].row))
        after = await backend.ledger.get_job(job.id)

        assert before is not None
        assert after is not None
        assert (before.state, after.state) == (JobState.RUNNING, JobState.COMPLETED)

    @clause
    async def test_an_end_that_a_turn_cannot_settle_is_left_to_the_dispatcher(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        source = source_of(backend)
        await _commit_job_of_three(backend, dependents=Document(key="in-a-blob", size=5))
        worker = await join(source)
        (task, _) = await worker.claim()
        seen = await source.wait_for_ends(0, timeout=NO_WAIT)

        async with running(source.wait_for_ends(seen, timeout=60 * SECOND)) as waiting:
            (answer,) = await worker.send(complete(task.row))
            assert await without_time_passing(waiting) > seen

        assert isinstance(answer, Applied)
        unrecorded = await backend.ledger.unrecorded_ends(ended_by=clock.now(), limit=9)
        assert unrecorded == [task.row.id]

    @clause
    async def test_the_depth_of_a_queue_counts_its_tasks(self, backend: Backend) -> None:
        source = source_of(backend)
        for number in range(3):
            await commit(backend, new_task(f"t{number}", number=number))
        await commit(backend, new_task("later", not_before=START + 60 * SECOND))
        await commit(backend, new_task("other", queue="agents"))
        worker = await join(source)
        await worker.claim(1)

        depth = await source.depth("default")

        assert (depth.ready, depth.hidden, depth.dead_letters) == (2, 2, 0)


def _document(text: str) -> Document:
    return Document(text=text, size=len(text))


async def _commit_job_of_three(backend: Backend, *, dependents: Document) -> JobRow:
    """Commit a job whose third task depends on the others; ``dependents`` are those of each."""
    graph = _document(
        '{"keys":["a","b","c"],"names":["resize","resize","resize"],"parents":[[],[],[0,1]]}'
    )
    created = new_job()
    row = replace(created.row, graph=graph, total=3)
    await commit_job(backend, replace(created, row=row))
    for number, key in enumerate("ab"):
        await commit(backend, new_task(key, number=number, dependents=dependents))
    await commit(backend, new_task("c", number=2, awaits=[0, 1], parents=_document('["a","b"]')))
    return row


def _release(task: ClaimedTask) -> LeaseCommand:
    release = c.Release(fence=task.row.fence, reason="stops", due_at=task.due_at)
    return LeaseCommand(task.row.id, release, fresh_change_id())


def _checkpoint(row: TaskRow, key: str) -> LeaseCommand:
    return LeaseCommand(row.id, c.SaveCheckpoint(fence=row.fence, key=key), fresh_change_id())
