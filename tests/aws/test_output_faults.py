"""The output log on DynamoDB when appends overlap, writers race, and answers are lost."""

import asyncio
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.adapters.aws.client import CallRefused
from longshore.adapters.memory.logs import MemoryOutputLog
from longshore.adapters.shared.output_codec import last_sequence_of, runs_of
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.output import OutputChunk, OutputPosition, Stream
from longshore.testing.contracts.suite import gather_all
from tests.aws.output_harness import (
    OutputHarness,
    append_with_retry,
    entries,
    entry,
    lost_marker,
    noise,
    open_harness,
    read_pages,
    run_in_harness,
)

THROTTLING_ERROR = BackendUnavailable("throttled")

harness = pytest.fixture(scope="module")(open_harness)


def covered_sequences(output: list[OutputChunk]) -> list[int]:
    return [
        number for each in output for number in range(each.sequence, last_sequence_of(each) + 1)
    ]


async def assert_segments_are_contiguous(harness: OutputHarness, task: str) -> None:
    ends = {0: 0}
    for item in await harness.items(task):
        attempt, first = map(int, item["position"]["S"].split("."))
        assert ends.get(attempt, 0) + 1 == first
        ends[attempt] = int(item["last"]["N"])


class Model:
    """What the first write of each place has left there, whatever it was a part of."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], OutputChunk] = {}

    def append(self, batch: list[OutputChunk]) -> None:
        for each in (each for run in runs_of(batch) for each in run):
            for sequence in range(each.sequence, last_sequence_of(each) + 1):
                self._entries.setdefault((each.attempt, sequence), each)

    def chunks(self) -> list[tuple[int, int, bytes, Stream]]:
        return [(*place, each.data, each.stream) for place, each in sorted(self._entries.items())]


def chunks_of(output: list[OutputChunk]) -> list[tuple[int, int, bytes, Stream]]:
    return [
        (each.attempt, sequence, each.data, each.stream)
        for each in output
        for sequence in range(each.sequence, last_sequence_of(each) + 1)
    ]


# Overlaps ---------------------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn, *, markers: bool) -> list[tuple[int, list[OutputChunk]]]:
    """Appends by two processes; each batch's data is its own, so that it shows which was first."""
    appends = []
    for number in range(draw(st.integers(1, 8))):
        batch: list[OutputChunk] = []
        for _ in range(draw(st.integers(1, 2))):
            attempt, first = draw(st.integers(1, 2)), draw(st.integers(1, 14))
            data = b"%d" % number * draw(st.sampled_from([1, 1, 1, 150_000]))
            if markers and draw(st.booleans()):
                batch.append(lost_marker(first, first + draw(st.integers(0, 6)), attempt=attempt))
            else:
                last = first + draw(st.integers(0, 4))
                batch += [entry(s, data, attempt=attempt) for s in range(first, last + 1)]
        appends.append((draw(st.integers(0, 1)), batch))
    return appends


@settings(max_examples=40)
@given(appends=batches(markers=False), sizes=st.lists(st.integers(1, 9), min_size=2))
def test_overlapping_appends_leave_what_the_reference_keeps(
    harness: OutputHarness, appends: list[tuple[int, list[OutputChunk]]], sizes: list[int]
) -> None:
    async def scenario() -> None:
        logs, task = [harness.open_log(), harness.open_log()], harness.new_task()
        memory = MemoryOutputLog(harness.clock)
        for number, batch in appends:
            await logs[number].append(task, batch)
            await memory.append(task, batch)

        for log in (logs[0], harness.open_log()):
            assert await read_pages(log, task, cycle(sizes)) == await memory.read(task)
        for after in (OutputPosition(1, 3), OutputPosition(1, 9), OutputPosition(2, 7)):
            found = await harness.open_log().read(task, after=after, limit=sizes[0])
            assert found == await memory.read(task, after=after, limit=sizes[0])
        await assert_segments_are_contiguous(harness, task)

    harness.run(scenario())


@settings(max_examples=40)
@given(appends=batches(markers=True), faults=st.sets(st.integers(2, 40)), late=st.booleans())
def test_the_first_write_of_a_place_stays_whatever_is_lost_or_late(
    harness: OutputHarness,
    appends: list[tuple[int, list[OutputChunk]]],
    faults: set[int],
    late: bool,
) -> None:
    def trouble(number: int, _: str) -> Exception | None:
        return OutcomeUnknown("lost") if number in faults else None

    async def scenario() -> None:
        logs, task, model = [harness.open_log(), harness.open_log()], harness.new_task(), Model()
        setattr(harness.aws, "before" if late else "after", trouble)
        for number, batch in appends:
            await append_with_retry(logs[number], task, batch)
            await harness.aws.deliver()
            model.append(batch)

        harness.aws.reset()

        assert chunks_of(await harness.open_log().read(task)) == model.chunks()
        await assert_segments_are_contiguous(harness, task)

    harness.run(scenario())


@run_in_harness
async def test_writers_at_once_keep_each_place_once_and_no_reader_sees_one_change(
    harness: OutputHarness,
) -> None:
    task, done = harness.new_task(), asyncio.Event()
    seen: dict[int, bytes] = {}

    async def write(number: int) -> None:
        log = harness.open_log()
        for round_ in range(6):
            first = 1 + (number * 7 + round_ * 5) % 40
            batch = entries(*range(first, first + 6), data=b"%d.%d" % (number, round_))
            await append_with_retry(log, task, batch)

    async def watch() -> int:
        looks = 0
        while not done.is_set():
            for each in await harness.open_log().read(task):
                assert seen.setdefault(each.sequence, each.data) == each.data
            looks += 1
        return looks

    watching = asyncio.create_task(watch())
    assert await gather_all(write(number) for number in range(12)) == [None] * 12
    done.set()

    assert await watching > 1
    found = await harness.open_log().read(task)
    assert [each.sequence for each in found] == sorted({each.sequence for each in found})
    assert {each.sequence: each.data for each in found}.items() >= seen.items()
    await assert_segments_are_contiguous(harness, task)


APPENDS = [entries(1, 2, 3), entries(4), entries(2, 3, 4, 5, 6), entries(6, 7), entries(9)]


@pytest.mark.parametrize("kept", [[], entries(4, 8)], ids=len)
@pytest.mark.parametrize("ours", APPENDS[:3], ids=len)
@pytest.mark.parametrize("theirs", APPENDS, ids=len)
@run_in_harness
async def test_another_may_append_between_any_two_calls(
    harness: OutputHarness,
    kept: list[OutputChunk],
    ours: list[OutputChunk],
    theirs: list[OutputChunk],
) -> None:
    for moment in range(1, 50):
        task, seen = harness.new_task(), list[OutputChunk]()
        await harness.open_log().append(task, kept)
        harness.aws.reset()

        async def meanwhile(task: str = task, seen: list[OutputChunk] = seen) -> None:
            await harness.open_log().append(task, [replace(each, data=b"them") for each in theirs])
            seen += await harness.open_log().read(task)

        harness.aws.concurrent_call = (moment, meanwhile)
        await harness.open_log().append(task, ours)
        harness.aws.reset()

        found = await harness.open_log().read(task)
        assert set(seen) <= set(found)
        wanted = {
            *covered_sequences(kept),
            *covered_sequences(ours),
            *(covered_sequences(theirs) if seen else []),
        }
        assert covered_sequences(found) == sorted(wanted)
        await assert_segments_are_contiguous(harness, task)
        if not seen:
            return


# Lost answers -----------------------------------------------------------------------------------

GAPS_AND_PARTS = [
    entries(1, 2),
    entries(9, 10),
    entries(4, 5, 6),
    [entry(3, noise(400_000)), *entries(7, 8, 11)],
]


@pytest.mark.parametrize("when", ["before", "after"])
@run_in_harness
async def test_any_call_may_fail_and_be_made_again(harness: OutputHarness, when: str) -> None:
    for fault in range(1, 100):
        log, task = harness.open_log(), harness.new_task()
        setattr(
            harness.aws,
            when,
            lambda number, _, at=fault: THROTTLING_ERROR if number == at else None,
        )

        for batch in GAPS_AND_PARTS:
            await append_with_retry(log, task, batch)
        calls = harness.aws.calls
        harness.aws.reset()

        wanted = sorted((each for batch in GAPS_AND_PARTS for each in batch), key=last_sequence_of)
        assert await harness.open_log().read(task) == wanted
        await assert_segments_are_contiguous(harness, task)
        harness.aws.reset()
        if fault > len(calls):
            break
    assert {"put_item", "query", "transact_write_items"} == set(calls)


@run_in_harness
async def test_a_batch_that_arrives_after_its_marker_changes_nothing(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, entries(1))
    harness.aws.before = lambda number, _: OutcomeUnknown("late") if number == 2 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(2, 3, 4))

    await log.append(task, [lost_marker(2, 4), entry(5)])
    await harness.aws.deliver()

    assert await log.read(task) == [entry(1), lost_marker(2, 4), entry(5)]


@run_in_harness
async def test_a_batch_that_was_kept_although_its_answer_was_lost_needs_no_marker(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    harness.aws.after = lambda number, _: OutcomeUnknown("lost") if number == 1 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(1, 2, 3))

    await log.append(task, [lost_marker(1, 3), entry(4)])

    assert await log.read(task) == entries(1, 2, 3, 4)


@run_in_harness
async def test_a_marker_for_a_batch_of_which_a_part_was_kept_stands_for_the_rest(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    large = [entry(number, noise(150_000, number)) for number in range(1, 6)]
    harness.aws.before = lambda number, _: OutcomeUnknown("late") if number > 1 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, large)
    harness.aws.before = lambda number, _: None

    await log.append(task, [lost_marker(1, 5), entry(6)])
    await harness.aws.deliver()

    found = await log.read(task)
    assert found == [*large[:2], lost_marker(3, 5), entry(6)]
    assert covered_sequences(found) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TransactionConflict", BackendUnavailable),
        ("ThrottlingError", BackendUnavailable),
        ("ValidationError", BackendRejected),
    ],
)
@run_in_harness
async def test_a_transaction_that_was_cancelled_for_another_reason_is_told(
    harness: OutputHarness, code: str, kind: type[Exception]
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, entries(9))
    reasons = {"CancellationReasons": [{"Code": "None"}, {"Code": code}, {"Code": "None"}]}

    def cancelled(_: int, operation: str) -> Exception | None:
        wanted = operation == "transact_write_items"
        return CallRefused("TransactionCanceledException", reasons) if wanted else None

    harness.aws.before = cancelled

    with pytest.raises(kind, match=code):
        await log.append(task, entries(4))
