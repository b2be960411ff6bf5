"""A worker's process as the supervisor has it, and both ends of the line between them.

The processes here are small programs: what counts is what comes through, and what is waited for.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from longshore.interfaces.cli.supervisor import LocalWorkerProcess, SupervisorChannel
from longshore.services.worker.supervisor import WorkerStatus
from tests.interfaces.command_line import TIMEOUT_S, is_alive

# What each begins with: the number of its line is its last argument.
_PROGRAM_HEAD = "import os, signal, sys; line = int(sys.argv[-1])\n"


class StartedWorker:
    """A small program in place of a worker, and what came of it."""

    def __init__(self, program: str) -> None:
        self.lines: list[str] = []
        self.messages: list[WorkerStatus] = []
        self._changed = asyncio.Event()
        self.worker = LocalWorkerProcess(
            ["argument"],
            on_message=self._collect(self.messages),
            on_line=self._collect(self.lines),
            memory_of=lambda process_id: process_id,
            program=(sys.executable, "-c", _PROGRAM_HEAD + program),
        )

    def _collect(self, items: list[Any]) -> Callable[[Any], None]:
        def keep(item: Any) -> None:
            items.append(item)
            self._changed.set()

        return keep

    async def until(self, look: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not look():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.worker.wait()


def run_async(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_both_streams_come_line_by_line_and_an_unfinished_one_at_the_end() -> None:
    async def play() -> None:
        started = StartedWorker(
            "print('one', flush=True); print('two', file=sys.stderr, flush=True)\n"
            "sys.stdout.write('three'); sys.exit(7)"
        )

        assert await started.ended() == 7
        assert started.lines == ["one", "two", "three"]

    run_async(play)


def test_a_line_that_does_not_end_is_handed_on_in_pieces() -> None:
    async def play() -> None:
        started = StartedWorker("sys.stdout.write('x' * 300_000 + '\\nend\\n')")

        await started.ended()

        assert "".join(started.lines) == "x" * 300_000 + "end"
        assert started.lines[-1] == "end"
        assert max(len(line) for line in started.lines) < 200_000

    run_async(play)


def test_what_is_no_text_is_shown_all_the_same() -> None:
    async def play() -> None:
        started = StartedWorker("os.write(1, b'caf\\xe9\\n')")

        await started.ended()

        assert started.lines == [r"caf\xe9"]

    run_async(play)


def test_the_end_is_not_put_off_by_somebody_who_holds_the_output_open() -> None:
    async def play() -> None:
        # The grandchild has its own copy of everything, and waits for a word that never comes.
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

    run_async(play)


def test_words_are_heard_and_those_of_a_later_version_are_not_minded() -> None:
    async def play() -> None:
        started = StartedWorker(
            "os.write(line, b'singing\\nserving\\ndrai'); os.write(line, b'ning\\n')"
        )

        await started.until(lambda: len(started.messages) == 2)

        assert started.messages == [WorkerStatus.SERVING, WorkerStatus.DRAINING]
        assert await started.ended() == 0

    run_async(play)


def test_a_worker_can_be_asked_and_killed_and_both_do_no_harm_when_it_has_ended() -> None:
    async def play() -> None:
        started = StartedWorker(
            "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
            "print('ready', flush=True)\n"
            "while True: signal.pause()"
        )
        await started.until(lambda: "ready" in started.lines)

        started.worker.request_stop()
        await started.until(lambda: "asked" in started.lines)
        started.worker.kill()

        assert await started.ended() == -signal.SIGKILL
        started.worker.request_stop()
        started.worker.kill()

    run_async(play)


def test_a_worker_is_out_of_reach_of_the_keys_of_our_terminal() -> None:
    async def play() -> None:
        started = StartedWorker("print(os.getsid(0), os.getpid(), sys.stdin.read() == '')")

        await started.ended()

        session, process_id, no_input = started.lines[0].split()
        assert session == process_id == str(started.worker.process_id)
        assert no_input == "True"

    run_async(play)


def test_memory_is_that_of_the_process_itself() -> None:
    async def play() -> None:
        started = StartedWorker("")

        assert started.worker.memory_bytes() == started.worker.process_id
        await started.ended()

    run_async(play)


def test_what_cannot_be_started_leaves_nothing_open() -> None:
    async def play() -> None:
        before = os.listdir("/proc/self/fd")

        with pytest.raises(FileNotFoundError):
            LocalWorkerProcess(
                [],
                on_message=lambda _: None,
                on_line=lambda _: None,
                memory_of=lambda _: 0,
                program=("/nowhere/at/all",),
            )

        assert os.listdir("/proc/self/fd") == before

    run_async(play)


def test_a_worker_that_has_ended_leaves_nothing_open() -> None:
    async def play() -> None:
        await StartedWorker("").ended()
        before = os.listdir("/proc/self/fd")

        await StartedWorker("print(1)").ended()

        assert os.listdir("/proc/self/fd") == before

    run_async(play)


def test_a_worker_hears_of_the_end_of_its_supervisor_once_and_of_nothing_else() -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        calls: list[int] = []
        heard = asyncio.Event()
        line = SupervisorChannel(theirs.detach())
        line.on_close(lambda: (calls.append(1), heard.set()))

        ours.send(b"good morning\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == []
        ours.close()
        async with asyncio.timeout(TIMEOUT_S):
            await heard.wait()
        for _ in range(5):
            await asyncio.sleep(0)

        assert calls == [1]
        line.close()

    run_async(play)


def test_a_worker_may_speak_to_a_supervisor_that_has_gone() -> None:
    ours, theirs = socket.socketpair()
    line = SupervisorChannel(theirs.detach())
    line.send(WorkerStatus.SERVING)
    assert ours.recv(100) == b"serving\n"
    ours.close()

    line.send(WorkerStatus.DRAINING)

    line.close()
