"""A worker process of the supervisor, and both ends of the channel between them.

The processes here are small programs in place of workers.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from longshore.core.supervision import WorkerStatus
from longshore.interfaces.cli.supervisor import LocalWorkerProcess, SupervisorChannel
from tests.interfaces.command_line import TIMEOUT_S, is_alive

# The first line of each program: its last argument is the descriptor of the channel.
_PROGRAM_HEAD = "import os, signal, sys; channel = int(sys.argv[-1])\n"


class StartedWorker:
    """A small program in place of a worker, with its lines and messages."""

    def __init__(self, program: str) -> None:
        self.lines: list[str] = []
        self.messages: list[WorkerStatus] = []
        self._changed = asyncio.Event()
        self.worker = LocalWorkerProcess(
            ["argument"],
            on_message=self._collect(self.messages),
            on_line=self._collect(self.lines),
            program=(sys.executable, "-c", _PROGRAM_HEAD + program),
        )

    def _collect(self, items: list[Any]) -> Callable[[Any], None]:
        def append(item: Any) -> None:
            items.append(item)
            self._changed.set()

        return append

    async def until(self, look: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not look():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.worker.ended


def run_async(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_both_streams_are_delivered_by_line_and_a_partial_line_at_the_end() -> None:
    async def scenario() -> None:
        started = StartedWorker(
            "print('one', flush=True); print('two', file=sys.stderr, flush=True)\n"
            "sys.stdout.write('three'); sys.exit(7)"
        )

        assert await started.ended() == 7
        assert started.lines == ["one", "two", "three"]

    run_async(scenario)


def test_a_line_without_an_end_is_delivered_in_chunks() -> None:
    async def scenario() -> None:
        started = StartedWorker("sys.stdout.write('x' * 300_000 + '\\nend\\n')")

        await started.ended()

        assert "".join(started.lines) == "x" * 300_000 + "end"
        assert started.lines[-1] == "end"
        assert max(len(line) for line in started.lines) < 200_000

    run_async(scenario)


def test_bytes_that_are_not_text_are_escaped() -> None:
    async def scenario() -> None:
        started = StartedWorker("os.write(1, b'caf\\xe9\\n')")

        await started.ended()

        assert started.lines == [r"caf\xe9"]

    run_async(scenario)


def test_the_end_does_not_wait_for_a_process_that_holds_the_output_open() -> None:
    async def scenario() -> None:
        # The grandchild has a copy of every descriptor and does not end.
        started = StartedWorker(
            "child = os.fork()\nif not child: signal.pause()\nprint(child, flush=True); os._exit(0)"
        )
        await started.until(lambda: bool(started.lines))
        grandchild = int(started.lines[0])
        try:
            assert await started.ended() == 0
            assert is_alive(grandchild)
        finally:
            os.kill(grandchild, signal.SIGKILL)

    run_async(scenario)


def test_statuses_are_delivered_and_unknown_ones_ignored() -> None:
    async def scenario() -> None:
        started = StartedWorker(
            "os.write(channel, b'singing\\nserving\\ndrai'); os.write(channel, b'ning\\n')"
        )

        await started.until(lambda: len(started.messages) == 2)

        assert started.messages == [WorkerStatus.SERVING, WorkerStatus.DRAINING]
        assert await started.ended() == 0

    run_async(scenario)


def test_a_worker_can_be_stopped_and_killed_even_after_its_end() -> None:
    async def scenario() -> None:
        started = StartedWorker(
            "signal.signal(signal.SIGTERM, lambda *_: print('stopping', flush=True))\n"
            "print('ready', flush=True)\n"
            "while True: signal.pause()"
        )
        await started.until(lambda: "ready" in started.lines)

        started.worker.request_stop()
        await started.until(lambda: "stopping" in started.lines)
        started.worker.kill()

        assert await started.ended() == -signal.SIGKILL
        started.worker.request_stop()
        started.worker.kill()

    run_async(scenario)


def test_a_worker_does_not_receive_the_signals_of_the_terminal() -> None:
    async def scenario() -> None:
        started = StartedWorker("print(os.getsid(0), os.getpid(), sys.stdin.read() == '')")

        await started.ended()

        session, process_id, no_input = started.lines[0].split()
        assert session == process_id == str(started.worker.process_id)
        assert no_input == "True"

    run_async(scenario)


def test_memory_is_that_of_the_process_itself() -> None:
    async def scenario() -> None:
        started = StartedWorker("held = b'x' * 200_000_000; print(flush=True); signal.pause()")
        await started.until(lambda: bool(started.lines))

        assert 200_000_000 < started.worker.memory_bytes() < 400_000_000
        started.worker.kill()
        await started.ended()
        assert started.worker.memory_bytes() == 0

    run_async(scenario)


def test_a_failed_start_leaves_nothing_open() -> None:
    async def scenario() -> None:
        before = os.listdir("/proc/self/fd")

        with pytest.raises(FileNotFoundError):
            LocalWorkerProcess(
                [],
                on_message=lambda _: None,
                on_line=lambda _: None,
                program=("/nowhere/at/all",),
            )

        assert os.listdir("/proc/self/fd") == before

    run_async(scenario)


def test_an_ended_worker_leaves_nothing_open() -> None:
    async def scenario() -> None:
        await StartedWorker("").ended()
        before = os.listdir("/proc/self/fd")

        await StartedWorker("print(1)").ended()

        assert os.listdir("/proc/self/fd") == before

    run_async(scenario)


def test_the_end_of_the_supervisor_is_reported_once() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        calls: list[int] = []
        closed = asyncio.Event()
        channel = SupervisorChannel(theirs.detach())
        channel.on_close(lambda: (calls.append(1), closed.set()))

        ours.send(b"good morning\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == []
        ours.close()
        async with asyncio.timeout(TIMEOUT_S):
            await closed.wait()
        for _ in range(5):
            await asyncio.sleep(0)

        assert calls == [1]
        channel.close()

    run_async(scenario)


def test_sending_to_an_ended_supervisor_is_ignored() -> None:
    ours, theirs = socket.socketpair()
    channel = SupervisorChannel(theirs.detach())
    channel.send(WorkerStatus.SERVING)
    assert ours.recv(100) == b"serving\n"
    ours.close()

    channel.send(WorkerStatus.DRAINING)

    channel.close()
