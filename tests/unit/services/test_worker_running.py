"""A worker at its queues: what it serves, how it stops, and what it survives."""

import asyncio
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshore.core.tasks.states import TaskState
from longshore.errors import BackendRejected, UsageError
from longshore.execution.host.launcher import ProcessRunner
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import InterposedPort


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_messages_that_arrive_with_the_order_to_stop_are_given_back_unharmed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))

        async def stop() -> None:
            worker.stop()

        interposed = harness.with_ports(queue=InterposedPort(backend.queue, "receive", after=stop))
        worker = interposed.worker()
        await worker.run()
        again = await backend.queue.receive(["default"], limit=10, hidden_for=SECOND, wait=NO_WAIT)

        assert harness.runner.specs == []
        assert [message.receive_count for message in again] == [1, 1]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_that_waits_for_messages_stops_at_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        worker = harness.worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(NO_WAIT)
        began = harness.clock.elapsed()

        worker.stop()
        await running
        await harness.submit(make_task())

        assert harness.clock.elapsed() == began
        assert len(await harness.messages()) == 1
        assert harness.worker_registry.calls == [
            ("register", "worker-1"),
            ("deregister", "worker-1"),
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_whose_run_is_cancelled_leaves_nothing_waiting_behind(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        running = asyncio.ensure_future(harness.worker().run())
        await harness.advance(NO_WAIT)

        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await harness.submit(make_task())
        await harness.advance(NO_WAIT)

        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_continues_when_the_queue_comes_back(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = FlakyPort(backend.queue, "receive", times=4)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=5))

        assert queue.failures == 4
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize(
    "error", [None, BackendRejected("denied"), ValueError("a bug")], ids=["down", "denied", "bug"]
)
@scenario
async def test_an_error_with_one_message_delays_it_and_the_worker_continues(
    kind: str, error: Exception | None, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        ledger = FlakyPort(backend.ledger, "get_task", error)
        harness = ServiceHarness(backend).with_ports(ledger=ledger)
        await harness.submit(make_task("a"), make_task("b"))

        async with harness.running_worker():
            await harness.advance(SECOND)
            soon = sorted(state.value for state in (await harness.states()).values())
            await harness.advance(timedelta(minutes=1))

        assert soon == ["completed", "pending"]
        assert set((await harness.states()).values()) == {TaskState.COMPLETED}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_workers_cannot_have_one_name(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        async with harness.running_worker("twin"):
            with pytest.raises(UsageError):
                await harness.worker("twin").run()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_cannot_run_tasks_on_its_system_claims_none(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = "longshore.execution.host.forkserver_client.sys"
    monkeypatch.setattr(client, SimpleNamespace(platform="darwin"))
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        runner = ProcessRunner(tmp_path, {}, harness.clock)

        with pytest.raises(UsageError, match="tasks run on Linux only"):
            await harness.worker("w", context={"runner": runner}).run()

        row = await harness.task("a")
        assert (row.state, row.attempt) == (TaskState.PENDING, 0)
        assert harness.worker_registry.calls[-1] == ("deregister", "w")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_serves_only_its_own_queues(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("a", queue="fast"), make_task("b", queue="slow"), make_task("c")
        )

        async with harness.running_worker(queues=("fast", "slow")):
            await harness.advance(SECOND)

        assert {spec.key for spec in harness.runner.specs} == {"a", "b"}
