"""The output log on DynamoDB when answers are lost and appends are repeated."""

import asyncio
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.adapters.shared.output_codec import last_sequence_of
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.output import OutputChunk
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
        number for chunk in output for number in range(chunk.sequence, last_sequence_of(chunk) + 1)
    ]


async def assert_segments_are_contiguous(harness: OutputHarness, task: str) -> None:
    ends = {0: 0}
    for item in await harness.items(task):
        attempt, first = map(int, item["position"]["S"].split("."))
        assert ends.get(attempt, 0) + 1 == first
        ends[attempt] = int(item["last"]["N"])


STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),  # the size of an append
        st.sampled_from([None, "before", "after"]),  # its answer is lost; "before": it arrives late
        st.booleans(),  # repeat it, or append a marker for it
        st.integers(0, 3),  # with as many entries more
        st.sampled_from([1, 1, 150_000]),
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(steps=STEPS, sizes=st.lists(st.integers(1, 9), min_size=2))
def test_a_writer_that_repeats_its_appends_leaves_no_gap_and_no_duplicate(
    harness: OutputHarness,
    steps: list[tuple[int, str | None, bool, int, int]],
    sizes: list[int],
) -> None:
    async def scenario() -> None:
        log, task, first = harness.open_log(), harness.new_task(), 1
        before: list[OutputChunk] = []
        for size, fault, gives_up, more, data_bytes in steps:
            batch = entries(*range(first, first + size), data=b"x" * data_bytes)
            if fault is not None:
                setattr(harness.aws, fault, lambda *_: OutcomeUnknown("lost"))
            try:
                await log.append(task, batch)
            except OutcomeUnknown:
                harness.aws.before = harness.aws.after = lambda *_: None
                repeated = [lost_marker(first, first + size - 1)] if gives_up else batch
                rest = entries(*range(first + size, first + size + more))
                await log.append(task, [*repeated, *rest])
                size += more
            await harness.aws.deliver()
            first += size
            output = await read_pages(harness.open_log(), task, cycle(sizes))
            assert covered_sequences(output) == list(range(1, first))
            assert output[: len(before)] == before
            before = output
            await assert_segments_are_contiguous(harness, task)

    harness.run(scenario())


@run_in_harness
async def test_concurrent_appends_of_the_same_output_are_read_without_duplicates(
    harness: OutputHarness,
) -> None:
    task, done, last = harness.new_task(), asyncio.Event(), 40

    async def write(number: int) -> None:
        log, first = harness.open_log(), 1
        while first <= last:
            end = min(first + 1 + (number + first) % 6, last + 1)
            await append_with_retry(log, task, entries(*range(first, end)))
            first = end

    async def watch() -> int:
        reads = 0
        while not done.is_set():
            output = await harness.open_log().read(task)
            assert [chunk.sequence for chunk in output] == list(range(1, len(output) + 1))
            reads += 1
        return reads

    watching = asyncio.create_task(watch())
    assert await gather_all(write(number) for number in range(12)) == [None] * 12
    done.set()

    assert await watching > 1
    assert await harness.open_log().read(task) == entries(*range(1, last + 1))


# Lost answers -----------------------------------------------------------------------------------

IN_ORDER = [
    entries(1, 2),
    [entry(3, noise(200_000)), entry(4, noise(200_000, 2)), *entries(5)],
    [lost_marker(6, 8), entry(9)],
]


@pytest.mark.parametrize("when", ["before", "after"])
@run_in_harness
async def test_any_call_may_fail_and_be_repeated(harness: OutputHarness, when: str) -> None:
    for fault in range(1, 100):
        log, task = harness.open_log(), harness.new_task()
        setattr(
            harness.aws,
            when,
            lambda number, _, at=fault: THROTTLING_ERROR if number == at else None,
        )

        for batch in IN_ORDER:
            await append_with_retry(log, task, batch)
        calls = harness.aws.calls
        harness.aws.reset()

        assert await harness.open_log().read(task) == [
            chunk for batch in IN_ORDER for chunk in batch
        ]
        await assert_segments_are_contiguous(harness, task)
        harness.aws.reset()
        if fault > len(calls):
            break
    assert set(calls) == {"put_item"}


@run_in_harness
async def test_a_batch_that_arrives_after_its_marker_changes_nothing(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, entries(1))
    harness.aws.before = lambda number, _: OutcomeUnknown("late")
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(2, 3, 4))
    harness.aws.before = lambda number, _: None

    await log.append(task, [lost_marker(2, 4), entry(5)])
    await harness.aws.deliver()

    assert await log.read(task) == [entry(1), lost_marker(2, 4), entry(5)]


@run_in_harness
async def test_a_batch_that_was_stored_although_its_response_was_lost_needs_no_marker(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    harness.aws.after = lambda number, _: OutcomeUnknown("lost")
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(1, 2, 3))
    harness.aws.after = lambda number, _: None

    await log.append(task, [lost_marker(1, 3), entry(4)])

    assert await log.read(task) == entries(1, 2, 3, 4)


@run_in_harness
async def test_a_marker_for_a_batch_that_was_partly_stored_covers_the_rest(
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

    result = await log.read(task)
    assert result == [*large[:2], lost_marker(3, 5), entry(6)]
    assert covered_sequences(result) == [1, 2, 3, 4, 5, 6]
