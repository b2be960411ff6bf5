"""The output log on DynamoDB: its contract, its packing, and the cost of reading."""

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.adapters.shared.output_codec import last_sequence_of, pack, unpack
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.output import CHUNK_LIMIT_BYTES, OutputPosition, Stream
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.output import OutputLogContract, OutputLogSharedContract
from longshore.testing.contracts.suite import running, settle
from tests.aws.backends import AwsContract, on_aws
from tests.aws.output_harness import (
    NOON,
    OutputHarness,
    entries,
    entry,
    noise,
    open_harness,
    read_pages,
    run_in_harness,
)
from tests.aws.stand_in import stand_in

CHUNK = 64 * 1024

harness = pytest.fixture(scope="module")(open_harness)


class TestDynamoOutputLog(AwsContract, OutputLogContract, OutputLogSharedContract):
    @pytest.fixture(autouse=True)
    def started(self) -> None:
        """So that a clause's time is its own."""
        stand_in()

    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, output=DynamoOutputLog)


# Packing ----------------------------------------------------------------------------------------


@run_in_harness
async def test_a_batch_is_one_item_and_costs_one_request(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()

    for first in range(1, 1000, 100):
        await log.append(task, entries(*range(first, first + 100)))

    assert harness.aws.calls == ["put_item"] * 10
    assert len(await harness.items(task)) == 10


@run_in_harness
async def test_text_is_kept_in_a_fifth_of_its_size(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    lines = [entry(n, b"%d: epoch %d, loss 0.%d\n" % (n, n // 7, n)) for n in range(1, 4000)]

    await log.append(task, lines)

    (item,) = await harness.items(task)
    assert len(item["data"]["B"]) * 5 < sum(len(line.data) for line in lines) + 32 * len(lines)
    assert await harness.open_log().read(task, limit=5000) == lines


@run_in_harness
async def test_everything_a_pump_appends_at_once_is_one_item(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()

    await log.append(task, [entry(n, noise(CHUNK)) for n in range(1, 6)])

    assert harness.aws.calls == ["put_item"]


@run_in_harness
async def test_reading_goes_through_pages_of_a_megabyte(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    batch = [entry(n, noise(CHUNK, n)) for n in range(1, 61)]

    await log.append(task, batch)

    assert len(await harness.items(task)) < harness.aws.calls.count("put_item")  # of the first page
    assert await harness.open_log().read(task) == batch
    assert await harness.open_log().read(task, after=OutputPosition(1, 57)) == batch[57:]


@run_in_harness
async def test_the_largest_chunks_are_kept(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    batch = [entry(1), entry(2, noise(CHUNK_LIMIT_BYTES)), entry(3, noise(CHUNK_LIMIT_BYTES, 2))]

    await log.append(task, batch)
    await log.append(task, [*batch, entry(4)])

    other = harness.open_log()
    assert await other.read(task) == [*batch, entry(4)]
    assert await other.read(task, after=OutputPosition(1, 2)) == [batch[2], entry(4)]
    assert await other.read(task, after=OutputPosition(1, 1), limit=1) == [batch[1]]


@pytest.mark.parametrize("sequence", [-1, 0, 10**19])
@run_in_harness
async def test_a_sequence_that_no_key_can_hold_is_refused(
    harness: OutputHarness, sequence: int
) -> None:
    with pytest.raises(UsageError):
        await harness.open_log().append(harness.new_task(), entries(sequence))


times = st.datetimes(timezones=st.just(NOON.tzinfo))


@given(st.lists(st.tuples(times, st.sampled_from(Stream), st.binary(), st.integers(0, 2**40))))
def test_unpacking_returns_the_packed_chunks(rows: list[tuple[Any, Stream, bytes, int]]) -> None:
    run, sequence = [], 7
    for at, stream, data, more in rows:
        last = sequence + more if stream is Stream.LOST else None
        run.append(entry(sequence, data, attempt=3, at=at, stream=stream, last=last))
        sequence = last_sequence_of(run[-1]) + 1

    assert unpack(pack(run), 3, 7) == run


# Reading ----------------------------------------------------------------------------------------


@run_in_harness
async def test_reading_further_inside_an_item_does_not_query_it_again(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await harness.open_log().append(task, entries(*range(1, 1001)))
    harness.aws.calls.clear()

    assert len(await read_pages(log, task, iter([100] * 11))) == 1000

    # The first page reads it, and the last finds that there is nothing behind it.
    assert harness.aws.calls == ["query"] * 2


@run_in_harness
async def test_reading_can_go_back_to_an_earlier_attempt(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    earlier, later = entries(1, 2, 3), [entry(n, attempt=2) for n in (1, 2, 3)]
    await log.append(task, [*earlier, *later])
    assert await log.read(task) == [*earlier, *later]

    assert await log.read(task, after=OutputPosition(1, 1)) == [*earlier[1:], *later]


@run_in_harness
async def test_an_item_that_was_written_behind_a_query_is_not_skipped(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, [entry(1, attempt=2)])
    for sequence in (1, 2, 3, 4):
        await log.append(task, entries(sequence))
    harness.aws.reset()
    # What a query sees that was at the second place before it was laid, and at the third after.
    harness.aws.edit_response = lambda number, answer: (
        answer["Items"].pop(0) if number == 2 else None
    )

    assert await harness.open_log().read(task) == [*entries(1, 2, 3, 4), entry(1, attempt=2)]


@pytest.mark.parametrize("forgotten", [(1,), (2,), (1, 2), (2, 3), (4,), (1, 4)])
@run_in_harness
async def test_items_that_were_deleted_are_skipped(
    harness: OutputHarness, forgotten: tuple[int, ...]
) -> None:
    log, task = harness.open_log(), harness.new_task()
    for sequence in (1, 2, 3, 4):
        await log.append(task, entries(sequence))
    for item in await harness.items(task):
        if int(item["last"]["N"]) in forgotten:
            key = {"task": item["task"], "position": item["position"]}
            await harness.aws.call(
                "dynamodb", "delete_item", TableName=harness.names.output, Key=key
            )

    rest = [sequence for sequence in (1, 2, 3, 4) if sequence not in forgotten]
    assert await harness.open_log().read(task) == entries(*rest)
    assert await harness.open_log().read(task, after=OutputPosition(1, 1)) == [
        chunk for chunk in entries(*rest) if chunk.sequence > 1
    ]


@run_in_harness
async def test_many_small_items_are_read_in_few_requests(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    for sequence in range(1, 61):
        await log.append(task, entries(sequence))
    harness.aws.calls.clear()

    assert await log.read(task) == entries(*range(1, 61))
    assert harness.aws.calls == ["query"] * 4


@run_in_harness
async def test_reads_are_consistent_and_only_polls_are_cheaper(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, entries(5))
    await harness.open_log().read(task, after=OutputPosition(1, 2))
    await log.wait_for_output(task, after=OutputPosition(1, 5), timeout=timedelta(0))
    looks = [call["ConsistentRead"] for call in harness.aws.parameters if "Limit" in call]
    assert looks == [True] * 4
    harness.aws.reset()

    async with running(
        log.wait_for_output(task, after=OutputPosition(1, 5), timeout=timedelta(hours=1))
    ):
        while len(harness.aws.calls) < 3:
            harness.clock.advance(timedelta(seconds=1))
            await settle()

    assert {call["ConsistentRead"] for call in harness.aws.parameters} == {False}
