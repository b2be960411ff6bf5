"""The contract of the ``OutputLog``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from longshore.ports.backend import Backend
from longshore.ports.output import OUTPUT_START as BEGINNING
from longshore.ports.output import OutputChunk, OutputPosition, Stream
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import (
    CALLERS,
    NO_WAIT,
    START,
    Opener,
    PortContract,
    advance_until_done,
    clause,
    gather_all,
    running,
    settle,
    without_time_passing,
)

SECOND = timedelta(seconds=1)
TASK = "job-one_a"
WAKE_UPS = 200


class OutputClauses(PortContract):
    """``append`` and ``read``."""

    @clause
    async def test_a_task_without_output_has_none(self, backend: Backend) -> None:
        assert await backend.output.read(TASK) == []

    @clause
    async def test_every_field_of_an_entry_is_kept(self, backend: Backend) -> None:
        entries = [
            _chunk(1, stream=Stream.STDOUT, data=bytes(range(256))),
            _chunk(2, stream=Stream.STDERR, data=b""),
            _chunk(3, stream=Stream.LOG, data="Füße 🚢".encode()),
            _chunk(4, stream=Stream.LOST, data=b"too much", last=9),
            _chunk(2**40, attempt=2, stream=Stream.STDOUT, data=b"x" * 1_000_000),
        ]

        await backend.output.append(TASK, entries)

        assert await backend.output.read(TASK) == entries

    @clause
    async def test_output_comes_by_attempt_and_then_by_sequence(self, backend: Backend) -> None:
        await backend.output.append(TASK, [_chunk(2), _chunk(10), _chunk(1)])
        await backend.output.append(TASK, [_chunk(1, attempt=10), _chunk(3, attempt=2)])
        await backend.output.append(TASK, [_chunk(9)])

        places = _positions(await backend.output.read(TASK))

        assert places == [(1, 1), (1, 2), (1, 9), (1, 10), (2, 3), (10, 1)]

    @clause
    async def test_an_entry_that_is_kept_already_changes_nothing(self, backend: Backend) -> None:
        first = _chunk(1, data=b"first")
        await backend.output.append(TASK, [first])

        await backend.output.append(TASK, [_chunk(1, data=b"second"), _chunk(2)])
        await backend.output.append(TASK, [_chunk(2), _chunk(2, data=b"other")])

        assert await backend.output.read(TASK) == [first, _chunk(2)]

    @clause
    async def test_one_sequence_in_two_attempts_is_two_entries(self, backend: Backend) -> None:
        entries = [_chunk(1, attempt=1, data=b"a"), _chunk(1, attempt=2, data=b"b")]

        await backend.output.append(TASK, entries)

        assert await backend.output.read(TASK) == entries

    @clause
    async def test_output_of_another_task_is_not_seen(self, backend: Backend) -> None:
        await backend.output.append("job-one_b", [_chunk(1)])

        assert await backend.output.read(TASK) == []

    @clause
    async def test_appending_nothing_is_no_mistake(self, backend: Backend) -> None:
        await backend.output.append(TASK, [])

        assert await backend.output.read(TASK) == []

    @clause
    async def test_reading_continues_after_a_position(self, backend: Backend) -> None:
        await backend.output.append(TASK, [_chunk(s, attempt=a) for a in (1, 2) for s in (1, 2, 3)])

        for position, first in (
            (BEGINNING, (1, 1)),
            (OutputPosition(1, 0), (1, 1)),
            (OutputPosition(1, 1), (1, 2)),
            (OutputPosition(1, 3), (2, 1)),
            (OutputPosition(1, 99), (2, 1)),
            (OutputPosition(2, 2), (2, 3)),
        ):
            assert _positions(await backend.output.read(TASK, after=position))[0] == first
        assert await backend.output.read(TASK, after=OutputPosition(2, 3)) == []

    @clause
    async def test_pages_give_each_entry_once(self, backend: Backend) -> None:
        await backend.output.append(
            TASK, [_chunk(s, attempt=a) for a in (1, 2) for s in range(1, 6)]
        )

        pages: list[list[OutputChunk]] = []
        position = BEGINNING
        while page := await backend.output.read(TASK, after=position, limit=4):
            pages.append(page)
            position = OutputPosition(page[-1].attempt, page[-1].sequence)

        assert [len(page) for page in pages] == [4, 4, 2]
        read = _positions(entry for page in pages for entry in page)
        assert read == [(a, s) for a in (1, 2) for s in range(1, 6)]

    @clause
    async def test_a_marker_covers_the_sequences_up_to_its_last(self, backend: Backend) -> None:
        marker = _chunk(3, stream=Stream.LOST, data=b"", last=7)
        await backend.output.append(TASK, [_chunk(1), _chunk(2), marker, _chunk(8)])

        entries = await backend.output.read(TASK)

        covered = [range(entry.sequence, entry.end + 1) for entry in entries]
        assert [number for part in covered for number in part] == list(range(1, 9))
        assert await backend.output.read(TASK, after=OutputPosition(1, marker.end)) == [_chunk(8)]

    @clause
    async def test_many_who_append_the_same_lose_and_double_nothing(self, backend: Backend) -> None:
        batches = [[_chunk(s) for s in range(1, 2 + n % 4 * 5)] for n in range(CALLERS)]

        answers = await gather_all(backend.output.append(TASK, batch) for batch in batches)

        assert answers == [None] * CALLERS
        assert _positions(await backend.output.read(TASK)) == [(1, s) for s in range(1, 17)]


class OutputWaitClauses(PortContract):
    """``wait``, measured on the backend's clock."""

    @clause
    async def test_what_is_there_ends_a_wait_at_once(self, backend: Backend) -> None:
        await backend.output.append(TASK, [_chunk(1), _chunk(2)])

        assert (
            await without_time_passing(
                backend.output.wait_for_output(TASK, after=BEGINNING, timeout=SECOND)
            )
            is True
        )
        assert (
            await without_time_passing(
                backend.output.wait_for_output(TASK, after=OutputPosition(1, 1), timeout=NO_WAIT)
            )
            is True
        )

    @clause
    async def test_without_a_wait_the_answer_comes_at_once(self, backend: Backend) -> None:
        await backend.output.append(TASK, [_chunk(1)])

        assert (
            await without_time_passing(
                backend.output.wait_for_output(TASK, after=OutputPosition(1, 1), timeout=NO_WAIT)
            )
            is False
        )

    @clause
    async def test_a_wait_ends_as_soon_as_something_is_after_the_position(
        self, backend: Backend
    ) -> None:
        await backend.output.append(TASK, [_chunk(1)])

        wait = backend.output.wait_for_output(TASK, after=OutputPosition(1, 1), timeout=20 * SECOND)
        async with running(wait) as waiting:
            assert not waiting.done()
            await backend.output.append(TASK, [_chunk(2)])

            assert await without_time_passing(waiting) is True

    @clause
    async def test_a_wait_gives_up_after_its_time_and_not_before(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        wait = backend.output.wait_for_output(TASK, after=BEGINNING, timeout=20 * SECOND)
        async with running(wait) as waiting:
            clock.advance(19 * SECOND)
            await settle()
            assert not waiting.done()

            assert await advance_until_done(waiting, clock, step=SECOND) is False
            assert clock.now() - START < 40 * SECOND

    @clause
    async def test_nothing_new_after_the_position_ends_no_wait(self, backend: Backend) -> None:
        await backend.output.append(TASK, [_chunk(1, attempt=2)])

        wait = backend.output.wait_for_output(TASK, after=OutputPosition(2, 1), timeout=20 * SECOND)
        async with running(wait) as waiting:
            await backend.output.append("job-one_b", [_chunk(5, attempt=5)])
            await backend.output.append(TASK, [_chunk(1, attempt=2), _chunk(9, attempt=1)])
            await settle()

            assert not waiting.done()

    @clause
    async def test_no_wake_up_is_lost_between_looking_and_waiting(self, backend: Backend) -> None:
        for number in range(1, WAKE_UPS + 1):
            after = OutputPosition(1, number - 1)
            wait = asyncio.create_task(
                backend.output.wait_for_output(TASK, after=after, timeout=SECOND)
            )
            # The writer comes a little later each time, to meet every step of the reader.
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await backend.output.append(TASK, [_chunk(number)])

            assert await without_time_passing(wait) is True


class OutputLogContract(OutputClauses, OutputWaitClauses):
    """What holds for every output log."""


class OutputLogSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_output_is_read_in_another_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        entries = [_chunk(sequence) for sequence in range(1, 4)]
        async with open_backend() as first, open_backend() as second:
            await first.output.append(TASK, entries)

            assert await second.output.read(TASK) == entries

        async with open_backend() as again:
            assert await again.output.read(TASK) == entries

    @clause
    async def test_a_wait_ends_when_another_instance_appends(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            wait = second.output.wait_for_output(TASK, after=BEGINNING, timeout=60 * SECOND)
            async with running(wait) as waiting:
                await first.output.append(TASK, [_chunk(1)])

                assert await advance_until_done(waiting, clock, step=SECOND) is True


def _chunk(
    sequence: int,
    *,
    attempt: int = 1,
    stream: Stream = Stream.STDOUT,
    data: bytes = b"hello\n",
    last: int | None = None,
) -> OutputChunk:
    return OutputChunk(
        attempt=attempt, sequence=sequence, at=START, stream=stream, data=data, last=last
    )


def _positions(chunks: Iterable[OutputChunk]) -> list[tuple[int, int]]:
    return [(entry.attempt, entry.sequence) for entry in chunks]
