"""The contract of pauses in DynamoDB, and its handling of DynamoDB's own behaviour."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient, AwsResponse
from longshore.adapters.aws.config_stores import DynamoQueueControls
from longshore.adapters.aws.names import Names
from longshore.core.queues import QueuePause
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.queue_controls import (
    QueueControlsContract,
    QueueControlsSharedContract,
    QueuedControlsContract,
    QueueHoldsContract,
    QueueHoldsSharedContract,
)
from longshore.testing.contracts.suite import (
    START,
    Opener,
    clause,
    running,
    without_time_passing,
)
from tests.aws.call_faults import (
    Call,
    CallFault,
    FaultyPortContract,
    after_action,
    request_lost,
    response_lost,
    response_lost_then,
    throttled,
    with_parameters,
)

LATER = START + timedelta(days=1)
NO_QUEUES: frozenset[str] = frozenset()
NEVER_S = 3600.0


class _AwsBackend(FaultyPortContract):
    poll_interval_s = 1.0

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        self.clock = clock
        async with super().make_backend(tmp_path, clock) as backend:
            yield backend

    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        return {
            "queue_controls": DynamoQueueControls(
                aws, names, self.clock, poll_interval_s=self.poll_interval_s
            )
        }


class TestDynamoQueueControls(
    _AwsBackend, QueueControlsContract, QueuedControlsContract, QueueControlsSharedContract
):
    pass


class TestDynamoHolds(_AwsBackend, QueueHoldsContract, QueueHoldsSharedContract):
    pass


class TestPauseWithFaults(_AwsBackend):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_pause_whose_response_was_lost_is_stored(
        self, backend: Backend, fault: CallFault
    ) -> None:
        self.faulty_aws.inject("put_item", fault, fault)

        pause = await _current_pauses(backend)

        assert pause == BY_US
        assert await backend.queue_controls.list_pauses() == [BY_US]

    @clause
    async def test_a_second_pause_whose_response_was_lost_returns_the_first(
        self, backend: Backend
    ) -> None:
        first = await backend.queue_controls.pause("a", by="bob", now=START)
        self.faulty_aws.inject("put_item", response_lost)

        assert await _current_pauses(backend) == first
        assert await backend.queue_controls.list_pauses() == [first]

    @clause
    async def test_a_repeated_pause_does_not_pause_a_queue_that_was_resumed_since(
        self, backend: Backend
    ) -> None:
        ended: list[QueuePause | None] = []

        async def resume() -> None:
            ended.append(await backend.queue_controls.resume("a"))

        self.faulty_aws.inject("put_item", response_lost_then(resume))

        assert await _current_pauses(backend) == BY_US

        assert ended == [BY_US]
        assert await backend.queue_controls.list_pauses() == []

    @clause
    async def test_a_pause_whose_responses_are_all_lost_raises_outcome_unknown(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("put_item", *[response_lost] * 3)

        with pytest.raises(OutcomeUnknown):
            await _current_pauses(backend)

    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_resume_whose_response_was_lost_returns_the_pause_that_ended(
        self, backend: Backend, fault: CallFault
    ) -> None:
        await _current_pauses(backend)
        self.faulty_aws.inject("update_item", fault, fault)

        assert await backend.queue_controls.resume("a") == BY_US

        assert await backend.queue_controls.resume("a") is None
        assert await backend.queue_controls.list_pauses() == []

    @clause
    async def test_a_repeated_resume_does_not_end_a_later_pause(self, backend: Backend) -> None:
        await _current_pauses(backend)

        async def pause() -> None:
            await backend.queue_controls.pause("a", by="bob", reason="a fire", now=LATER)

        self.faulty_aws.inject("update_item", response_lost_then(pause))

        await backend.queue_controls.resume("a")

        later_pause = QueuePause(name="a", by="bob", reason="a fire", at=LATER)
        assert await backend.queue_controls.list_pauses() == [later_pause]

    @clause
    async def test_a_resume_of_a_queue_that_was_resumed_meanwhile_returns_none(
        self, backend: Backend
    ) -> None:
        await _current_pauses(backend)
        ended: list[QueuePause | None] = []

        async def resume() -> None:
            ended.append(await backend.queue_controls.resume("a"))

        self.faulty_aws.inject("update_item", after_action(resume))

        assert await backend.queue_controls.resume("a") is None
        assert ended == [BY_US]

    @clause
    async def test_pauses_are_listed_over_several_pages(self, backend: Backend) -> None:
        names = [f"q{number:02}" for number in range(12)]
        for name in names:
            await backend.queue_controls.pause(name, by="ann", now=START)
        await backend.queue_controls.resume("q07")
        self.faulty_aws.inject("query", *[with_parameters(Limit=5)] * 10)

        paused = await backend.queue_controls.list_pauses()

        assert [item.name for item in paused] == [name for name in names if name != "q07"]
        assert self.faulty_aws.count("query") == 3


class TestHoldWithFaults(_AwsBackend):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_hold_whose_response_was_lost_is_stored(
        self, backend: Backend, fault: CallFault
    ) -> None:
        self.faulty_aws.inject("put_item", fault, fault)

        assert await _current_holds(backend) == HOLD
        assert await backend.queue_controls.list_pauses() == [HOLD]

    @clause
    async def test_a_repeated_hold_does_not_hold_a_queue_that_was_resumed_since(
        self, backend: Backend
    ) -> None:
        ended: list[QueuePause | None] = []

        async def resume() -> None:
            ended.append(await backend.queue_controls.resume("a"))

        self.faulty_aws.inject("put_item", response_lost_then(resume))

        assert await _current_holds(backend) == HOLD
        assert ended == [HOLD]
        assert await backend.queue_controls.list_pauses() == []

    @clause
    async def test_a_resume_that_fails_halfway_has_ended_the_hold_and_not_the_pause(
        self, backend: Backend
    ) -> None:
        await _current_holds(backend)
        await _current_pauses(backend)
        self.faulty_aws.inject("update_item", with_parameters(), throttled)

        with pytest.raises(BackendUnavailable):
            await backend.queue_controls.resume("a")

        assert await backend.queue_controls.list_pauses() == [BY_US]
        assert await backend.queue_controls.resume("a") == BY_US


class TestWaiting(_AwsBackend):
    poll_interval_s = 0.01

    @clause
    async def test_a_cancelled_wait_does_not_end_the_others(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        async with (
            open_backend() as other,
            running(backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)) as first,
            running(backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)) as second,
        ):
            first.cancel()
            await _current_pauses(other)

            assert await without_time_passing(second) == {"a"}

    @clause
    async def test_a_failed_poll_raises_and_the_next_wait_succeeds(self, backend: Backend) -> None:
        self.faulty_aws.inject("query", with_parameters(), throttled)

        with pytest.raises(BackendUnavailable):
            await without_time_passing(
                backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)
            )

        async with running(
            backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)
        ) as waiting:
            await _current_pauses(backend)
            assert await without_time_passing(waiting) == {"a"}


class TestWaitingForLocalChanges(_AwsBackend):
    poll_interval_s = NEVER_S

    @clause
    async def test_a_change_during_a_poll_causes_another_poll_at_once(
        self, backend: Backend
    ) -> None:
        blocked = _BlockedCall(answer_from_before=True)
        async with running(
            backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)
        ) as waiting:
            self.faulty_aws.inject("query", blocked)
            await backend.queue_controls.pause("other", by="ann", now=START)
            await without_time_passing(blocked.reached.wait())

            await _current_pauses(backend)
            blocked.released.set()

            assert await without_time_passing(waiting) == {"a"}

    @clause
    async def test_a_cancelled_wait_leaves_no_task(self, backend: Backend) -> None:
        before = asyncio.all_tasks()
        async with running(backend.queue_controls.paused_queues(["a"], changed_from=NO_QUEUES)):
            await _until(lambda: self.faulty_aws.count("query") == 1)

        await _until(lambda: asyncio.all_tasks() == before)


class _BlockedCall:
    """A call that returns when the test releases it."""

    def __init__(self, *, answer_from_before: bool = False) -> None:
        self.reached, self.released = asyncio.Event(), asyncio.Event()
        self._answer_from_before = answer_from_before

    async def __call__(self, call: Call) -> AwsResponse:
        before = await call()
        self.reached.set()
        await self.released.wait()
        return before if self._answer_from_before else await call()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


BY_US = QueuePause(name="a", by="ann", reason="a flood", at=START)
HOLD = QueuePause(
    name="a", by="worker-1", reason="limit", at=START, until=START + timedelta(minutes=1)
)


async def _current_holds(backend: Backend) -> QueuePause:
    until = START + timedelta(minutes=1)
    return await backend.queue_controls.hold(
        "a", until=until, by="worker-1", reason="limit", now=START
    )


async def _current_pauses(backend: Backend) -> QueuePause:
    return await backend.queue_controls.pause("a", by="ann", reason="a flood", now=START)
