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

from longshore.interfaces.cli.lifeline import Lifeline
from longshore.interfaces.cli.supervising_processes import LocalWorker
from longshore.services.supervisor import Word
from tests.interfaces.doors import PATIENCE_S, is_alive

# What each begins with: the number of its line is its last argument.
_BEGINNING = "import os, signal, sys; line = int(sys.argv[-1])\n"


class Started:
    """A small program in place of a worker, and what came of it."""

    def __init__(self, program: str) -> None:
        self.lines: list[str] = []
        self.words: list[Word] = []
        self._news = asyncio.Event()
        self.worker = LocalWorker(
            ["argument"],
            heard=self._keep(self.words),
            printed=self._keep(self.lines),
            memory_of=lambda process_id: process_id,
            program=(sys.executable, "-c", _BEGINNING + program),
        )

    def _keep(self, kept: list[Any]) -> Callable[[Any], None]:
        def keep(item: Any) -> None:
            kept.append(item)
            self._news.set()

        return keep

    async def until(self, look: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not look():
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.worker.ended()


def story(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play())


def test_both_streams_come_line_by_line_and_an_unfinished_one_at_the_end() -> None:
    async def play() -> None:
        started = Started(
            "print('one', flush=True); print('two', file=sys.stderr, flush=True)\n"
            "sys.stdout.write('three'); sys.exit(7)"
        )

        assert await started.ended() == 7
        assert started.lines == ["one", "two", "three"]

    story(play)


def test_a_line_that_does_not_end_is_handed_on_in_pieces() -> None:
    async def play() -> None:
        started = Started("sys.stdout.write('x' * 300_000 + '\\nend\\n')")

        await started.ended()

        assert "".join(started.lines) == "x" * 300_000 + "end"
        assert started.lines[-1] == "end"
        assert max(len(line) for line in started.lines) < 200_000

    story(play)


def test_what_is_no_text_is_shown_all_the_same() -> None:
    async def play() -> None:
        started = Started("os.write(1, b'caf\\xe9\\n')")

        await started.ended()

        assert started.lines == [r"caf\xe9"]

    story(play)


def test_the_end_is_not_put_off_by_somebody_who_holds_the_output_open() -> None:
    async def play() -> None:
        # The grandchild has its own copy of everything, and waits for a word that never comes.
        started = Started(
            "child = os.fork()\nif not child: signal.pause()\nprint(child, flush=True); os._exit(0)"
        )
        await started.until(lambda: bool(started.lines))
        grandchild = int(started.lines[0])
        try:
            assert await started.ended() == 0
            assert is_alive(grandchild)
        finally:
            os.kill(grandchild, signal.SIGKILL)

    story(play)


def test_words_are_heard_and_those_of_a_later_version_are_not_minded() -> None:
    async def play() -> None:
        started = Started("os.write(line, b'singing\\nserving\\ndrai'); os.write(line, b'ning\\n')")

        await started.until(lambda: len(started.words) == 2)

        assert started.words == [Word.SERVING, Word.DRAINING]
        assert await started.ended() == 0

    story(play)


def test_a_worker_can_be_asked_and_killed_and_both_do_no_harm_when_it_has_ended() -> None:
    async def play() -> None:
        started = Started(
            "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
            "print('ready', flush=True)\n"
            "while True: signal.pause()"
        )
        await started.until(lambda: "ready" in started.lines)

        started.worker.ask_to_end()
        await started.until(lambda: "asked" in started.lines)
        started.worker.kill()

        assert await started.ended() == -signal.SIGKILL
        started.worker.ask_to_end()
        started.worker.kill()

    story(play)


def test_a_worker_is_out_of_reach_of_the_keys_of_our_terminal() -> None:
    async def play() -> None:
        started = Started("print(os.getsid(0), os.getpid(), sys.stdin.read() == '')")

        await started.ended()

        session, process_id, no_input = started.lines[0].split()
        assert session == process_id == str(started.worker.process_id)
        assert no_input == "True"

    story(play)


def test_memory_is_that_of_the_process_itself() -> None:
    async def play() -> None:
        started = Started("")

        assert started.worker.memory_bytes() == started.worker.process_id
        await started.ended()

    story(play)


def test_what_cannot_be_started_leaves_nothing_open() -> None:
    async def play() -> None:
        before = os.listdir("/proc/self/fd")

        with pytest.raises(FileNotFoundError):
            LocalWorker(
                [],
                heard=lambda _: None,
                printed=lambda _: None,
                memory_of=lambda _: 0,
                program=("/nowhere/at/all",),
            )

        assert os.listdir("/proc/self/fd") == before

    story(play)


def test_a_worker_that_has_ended_leaves_nothing_open() -> None:
    async def play() -> None:
        await Started("").ended()
        before = os.listdir("/proc/self/fd")

        await Started("print(1)").ended()

        assert os.listdir("/proc/self/fd") == before

    story(play)


def test_a_worker_hears_of_the_end_of_its_supervisor_once_and_of_nothing_else() -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        calls: list[int] = []
        heard = asyncio.Event()
        line = Lifeline(theirs.detach())
        line.at_its_end(lambda: (calls.append(1), heard.set()))

        ours.send(b"good morning\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == []
        ours.close()
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
        for _ in range(5):
            await asyncio.sleep(0)

        assert calls == [1]
        line.close()

    story(play)


def test_a_worker_may_speak_to_a_supervisor_that_has_gone() -> None:
    ours, theirs = socket.socketpair()
    line = Lifeline(theirs.detach())
    line.tell(Word.SERVING)
    assert ours.recv(100) == b"serving\n"
    ours.close()

    line.tell(Word.DRAINING)

    line.close()
