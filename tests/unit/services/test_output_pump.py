"""Output is complete: numbered without a gap, and what is lost leaves a marker in its place."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.errors import BackendRejected
from longshore.ports.output import CHUNK_LIMIT_BYTES, OutputChunk, Stream
from longshore.services.worker.context import OutputPolicy
from longshore.services.worker.output import OutputPump
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import BACKENDS, SECOND, ServiceHarness, open_backend, scenario

TASK = "job-a_a"
ERR = Stream.STDERR


def a_pump(harness: ServiceHarness, log: Any = None, **policy: Any) -> OutputPump:
    here = harness if log is None else harness.with_ports(output=log)
    return OutputPump(here.worker_context(output=OutputPolicy(**policy)), TASK, 1)


async def stored(harness: ServiceHarness, task_id: str = TASK) -> list[OutputChunk]:
    return await harness.backend.output.read(task_id, limit=10_000)


def covered(entries: Sequence[OutputChunk]) -> list[int]:
    """The sequences that the entries stand for, in order."""
    return [number for entry in entries for number in range(entry.sequence, entry.end + 1)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_every_piece_is_kept_in_order_with_its_stream(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness)

        for number in range(100):
            await pump.add(ERR if number % 3 else Stream.STDOUT, b"%d" % number)
        await pump.finish()

        entries = await stored(harness)
        assert covered(entries) == list(range(1, 101))
        assert [entry.data for entry in entries] == [b"%d" % number for number in range(100)]
        assert [entry.stream is ERR for entry in entries] == [n % 3 != 0 for n in range(100)]
        assert pump.last_stored == 100


@scenario
async def test_a_long_text_is_stored_as_several_chunks() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness)
        sizes = [CHUNK_LIMIT_BYTES, 2 * CHUNK_LIMIT_BYTES + 1]
        data = [bytes([number]) * size for number, size in enumerate(sizes)]

        for text in data:
            await pump.add(Stream.LOG, text)
        await pump.finish()

        entries = await stored(harness)
        assert b"".join(entry.data for entry in entries) == b"".join(data)
        assert [len(entry.data) for entry in entries] == [CHUNK_LIMIT_BYTES] * 3 + [1]
        assert pump.last_stored == 4


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_child_that_prints_nothing_has_stored_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness)

        await pump.finish()

        assert pump.last_stored is None
        assert await stored(harness) == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_piece_can_be_read_soon_after_it_was_printed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness, flush_after=timedelta(milliseconds=50))

        await pump.add(Stream.STDOUT, b"a")
        await harness.advance(timedelta(milliseconds=49))
        early = await stored(harness)
        await pump.add(Stream.STDOUT, b"b")
        await harness.advance(timedelta(milliseconds=1))
        later = await stored(harness)
        await pump.add(Stream.STDOUT, b"c")
        await harness.advance(timedelta(milliseconds=50))

        assert [entry.data for entry in early] == []
        assert [entry.data for entry in later] == [b"a", b"b"]
        assert [entry.data for entry in await stored(harness)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_full_batch_is_kept_at_once_and_many_pieces_share_a_call(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=0)
        pump = a_pump(harness, log, batch_bytes=1000)

        for _ in range(25):
            await pump.add(Stream.STDOUT, b"x" * 100)

        assert len(await stored(harness)) == 20
        assert log.calls == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_marker_covers_all_output_beyond_the_limit(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness, limit_bytes=1000)

        for _ in range(25):
            await pump.add(Stream.STDOUT, b"x" * 100)
        await pump.finish()

        entries = await stored(harness)
        assert covered(entries) == list(range(1, 26))
        assert [entry.stream for entry in entries[9:]] == [Stream.STDOUT, Stream.LOST]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_output_survives_a_short_outage_of_the_log(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=4)
        pump = a_pump(harness, log)

        await pump.add(Stream.STDOUT, b"a")
        await harness.advance_until_done(pump.finish())

        assert log.failures == 4
        assert [entry.data for entry in await stored(harness)] == [b"a"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [None, BackendRejected("denied")], ids=["down", "denied"])
@scenario
async def test_output_that_the_log_could_not_store_is_marked_when_it_is_back(
    kind: str, error: Exception | None, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", error, times=0)
        pump = a_pump(harness, log)

        await pump.add(Stream.STDOUT, b"1")
        await harness.advance(SECOND)
        log.fail_always()
        for piece in (b"2", b"3"):
            await pump.add(Stream.STDOUT, piece)
        await harness.advance(timedelta(seconds=5))
        await pump.add(Stream.STDOUT, b"4")
        await harness.advance(timedelta(seconds=5))
        log.recover()
        await pump.add(Stream.STDOUT, b"5")
        await harness.advance(SECOND)
        await pump.finish()

        entries = await stored(harness)
        assert covered(entries) == [1, 2, 3, 4, 5]
        assert [entry.data for entry in entries] == [b"1", b"", b"", b"5"]
        assert [entry.stream is Stream.LOST for entry in entries] == [False, True, True, False]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_log_that_fails_while_too_much_is_printed_leaves_no_gap(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=6)
        pump = a_pump(harness, log, limit_bytes=1000)

        for _ in range(20):
            await pump.add(Stream.STDOUT, b"x" * 100)
        await harness.advance_until_done(pump.finish())

        entries = await stored(harness)
        assert covered(entries) == list(range(1, 21))
        assert {entry.stream for entry in entries} == {Stream.LOST}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_output_before_and_after_an_outage_stays_when_too_much_follows(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=6)
        pump = a_pump(harness, log, limit_bytes=1000)

        for _ in range(3):
            await pump.add(Stream.STDOUT, b"x" * 100)
        await harness.advance(timedelta(seconds=5))
        for _ in range(20):
            await pump.add(Stream.STDOUT, b"y" * 100)
        await pump.finish()

        entries = await stored(harness)
        assert covered(entries) == list(range(1, 24))
        assert [entry.data[:1] for entry in entries] == [b"", *[b"y"] * 7, b""]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_lost_answer_is_no_lost_output(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=6, after_write=True)
        pump = a_pump(harness, log)

        for piece in (b"1", b"2"):
            await pump.add(Stream.STDOUT, piece)
        await harness.advance(timedelta(seconds=5))
        log.recover()
        await pump.add(Stream.STDOUT, b"3")
        await pump.finish()

        entries = await stored(harness)
        assert [entry.data for entry in entries] == [b"1", b"2", b"3"]
        assert covered(entries) == [1, 2, 3]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_answer_that_was_lost_before_a_real_loss_leaves_no_gap(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        forgetful = FlakyPort(backend.output, "append", times=None, after_write=True)
        down = FlakyPort(forgetful, "append", times=0)
        pump = a_pump(harness, down)

        await pump.add(Stream.STDOUT, b"1")
        await harness.advance(timedelta(seconds=5))
        down.fail_always()
        await pump.add(Stream.STDOUT, b"2")
        await harness.advance(timedelta(seconds=5))
        forgetful.recover()
        down.recover()
        await pump.finish()

        entries = await stored(harness)
        assert covered(entries) == [1, 2]
        assert [entry.data for entry in entries] == [b"1", b""]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_log_that_stays_down_does_not_hold_up_the_attempt_for_ever(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        pump = a_pump(harness, FlakyPort(backend.output, "append", times=None))
        began = harness.clock.elapsed()

        await pump.add(Stream.STDOUT, b"1")
        await harness.advance_until_done(pump.finish())

        assert harness.clock.elapsed() - began < timedelta(seconds=10)
        assert pump.last_stored is None


STEPS = st.lists(
    st.one_of(
        st.integers(1, 400).map(lambda size: ("print", size)),
        st.sampled_from(
            [("wait", 0.06), ("wait", 2.0), ("break", 0), ("forget", 0), ("recover", 0)]
        ),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_sequence_is_covered_once_despite_errors_of_the_log(
    steps: list[tuple[str, float]],
) -> None:
    @scenario
    async def run_scenario() -> None:
        async with open_backend("memory", Path()) as backend:
            harness = ServiceHarness(backend)
            forgetful = FlakyPort(backend.output, "append", times=0, after_write=True)
            down = FlakyPort(forgetful, "append", times=0)
            pump = a_pump(harness, down, limit_bytes=3000, batch_bytes=700)
            printed = 0
            for what, much in steps:
                match what:
                    case "print":
                        printed += 1
                        await harness.advance_until_done(pump.add(Stream.STDOUT, b"x" * int(much)))
                    case "wait":
                        await harness.advance(timedelta(seconds=much))
                    case "break":
                        down.fail_always()
                    case "forget":
                        forgetful.fail_always()
                    case _:
                        down.recover()
                        forgetful.recover()
            down.recover()
            forgetful.recover()
            await harness.advance(timedelta(seconds=5))
            await pump.finish()

            assert covered(await stored(harness)) == list(range(1, printed + 1))

    run_scenario()
