"""The output log on DynamoDB when appends overlap, writers race, and answers are lost."""

import asyncio
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.adapters.aws.calls import Refused
from longshore.adapters.memory.output import MemoryOutputLog
from longshore.adapters.shared.output_codec import end_of, runs_of
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.output import OutputEntry, Place, Stream
from longshore.testing.contracts.suite import at_once
from tests.aws.output_house import (
    House,
    entries,
    entry,
    lost,
    noise,
    open_house,
    paged,
    persistently,
    played,
)

THROTTLED = BackendUnavailable("throttled")

house = pytest.fixture(scope="module")(open_house)


def covered(found: list[OutputEntry]) -> list[int]:
    return [number for each in found for number in range(each.sequence, end_of(each) + 1)]


async def assert_tiles_lie_edge_to_edge(house: House, task: str) -> None:
    ends = {0: 0}
    for item in await house.items(task):
        attempt, first = map(int, item["place"]["S"].split("."))
        assert ends.get(attempt, 0) + 1 == first
        ends[attempt] = int(item["last"]["N"])


class Model:
    """What the first write of each place has left there, whatever it was a part of."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], OutputEntry] = {}

    def append(self, batch: list[OutputEntry]) -> None:
        for each in (each for run in runs_of(batch) for each in run):
            for sequence in range(each.sequence, end_of(each) + 1):
                self._kept.setdefault((each.attempt, sequence), each)

    def pieces(self) -> list[tuple[int, int, bytes, Stream]]:
        return [(*place, each.data, each.stream) for place, each in sorted(self._kept.items())]


def pieces(found: list[OutputEntry]) -> list[tuple[int, int, bytes, Stream]]:
    return [
        (each.attempt, sequence, each.data, each.stream)
        for each in found
        for sequence in range(each.sequence, end_of(each) + 1)
    ]


# Overlaps ---------------------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn, *, markers: bool) -> list[tuple[int, list[OutputEntry]]]:
    """Appends by two processes; each batch's data is its own, so that it shows which was first."""
    appends = []
    for number in range(draw(st.integers(1, 8))):
        batch: list[OutputEntry] = []
        for _ in range(draw(st.integers(1, 2))):
            attempt, first = draw(st.integers(1, 2)), draw(st.integers(1, 14))
            data = b"%d" % number * draw(st.sampled_from([1, 1, 1, 150_000]))
            if markers and draw(st.booleans()):
                batch.append(lost(first, first + draw(st.integers(0, 6)), attempt=attempt))
            else:
                last = first + draw(st.integers(0, 4))
                batch += [entry(s, data, attempt=attempt) for s in range(first, last + 1)]
        appends.append((draw(st.integers(0, 1)), batch))
    return appends


@settings(max_examples=40)
@given(appends=batches(markers=False), sizes=st.lists(st.integers(1, 9), min_size=2))
def test_overlapping_appends_leave_what_the_reference_keeps(
    house: House, appends: list[tuple[int, list[OutputEntry]]], sizes: list[int]
) -> None:
    async def scenario() -> None:
        logs, task = [house.process(), house.process()], house.new_task()
        memory = MemoryOutputLog(house.clock)
        for number, batch in appends:
            await logs[number].append(task, batch)
            await memory.append(task, batch)

        for log in (logs[0], house.process()):
            assert await paged(log, task, cycle(sizes)) == await memory.read(task)
        for after in (Place(1, 3), Place(1, 9), Place(2, 7)):
            found = await house.process().read(task, after=after, limit=sizes[0])
            assert found == await memory.read(task, after=after, limit=sizes[0])
        await assert_tiles_lie_edge_to_edge(house, task)

    house.run(scenario())


@settings(max_examples=40)
@given(appends=batches(markers=True), faults=st.sets(st.integers(2, 40)), late=st.booleans())
def test_the_first_write_of_a_place_stays_whatever_is_lost_or_late(
    house: House, appends: list[tuple[int, list[OutputEntry]]], faults: set[int], late: bool
) -> None:
    def trouble(number: int, _: str) -> Exception | None:
        return OutcomeUnknown("lost") if number in faults else None

    async def scenario() -> None:
        logs, task, model = [house.process(), house.process()], house.new_task(), Model()
        setattr(house.aws, "before" if late else "after", trouble)
        for number, batch in appends:
            await persistently(logs[number], task, batch)
            await house.aws.deliver()
            model.append(batch)

        house.aws.reset()

        assert pieces(await house.process().read(task)) == model.pieces()
        await assert_tiles_lie_edge_to_edge(house, task)

    house.run(scenario())


@played
async def test_writers_at_once_keep_each_place_once_and_no_reader_sees_one_change(
    house: House,
) -> None:
    task, done = house.new_task(), asyncio.Event()
    seen: dict[int, bytes] = {}

    async def write(number: int) -> None:
        log = house.process()
        for round_ in range(6):
            first = 1 + (number * 7 + round_ * 5) % 40
            batch = entries(*range(first, first + 6), data=b"%d.%d" % (number, round_))
            await persistently(log, task, batch)

    async def watch() -> int:
        looks = 0
        while not done.is_set():
            for each in await house.process().read(task):
                assert seen.setdefault(each.sequence, each.data) == each.data
            looks += 1
        return looks

    watching = asyncio.create_task(watch())
    assert await at_once(write(number) for number in range(12)) == [None] * 12
    done.set()

    assert await watching > 1
    found = await house.process().read(task)
    assert [each.sequence for each in found] == sorted({each.sequence for each in found})
    assert {each.sequence: each.data for each in found}.items() >= seen.items()
    await assert_tiles_lie_edge_to_edge(house, task)


APPENDS = [entries(1, 2, 3), entries(4), entries(2, 3, 4, 5, 6), entries(6, 7), entries(9)]


@pytest.mark.parametrize("kept", [[], entries(4, 8)], ids=len)
@pytest.mark.parametrize("ours", APPENDS[:3], ids=len)
@pytest.mark.parametrize("theirs", APPENDS, ids=len)
@played
async def test_another_may_append_between_any_two_calls(
    house: House,
    kept: list[OutputEntry],
    ours: list[OutputEntry],
    theirs: list[OutputEntry],
) -> None:
    for moment in range(1, 50):
        task, seen = house.new_task(), list[OutputEntry]()
        await house.process().append(task, kept)
        house.aws.reset()

        async def meanwhile(task: str = task, seen: list[OutputEntry] = seen) -> None:
            await house.process().append(task, [replace(each, data=b"them") for each in theirs])
            seen += await house.process().read(task)

        house.aws.meanwhile = (moment, meanwhile)
        await house.process().append(task, ours)
        house.aws.reset()

        found = await house.process().read(task)
        assert set(seen) <= set(found)
        wanted = {*covered(kept), *covered(ours), *(covered(theirs) if seen else [])}
        assert covered(found) == sorted(wanted)
        await assert_tiles_lie_edge_to_edge(house, task)
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
@played
async def test_any_call_may_fail_and_be_made_again(house: House, when: str) -> None:
    for fault in range(1, 100):
        log, task = house.process(), house.new_task()
        setattr(house.aws, when, lambda number, _, at=fault: THROTTLED if number == at else None)

        for batch in GAPS_AND_PARTS:
            await persistently(log, task, batch)
        calls = house.aws.calls
        house.aws.reset()

        wanted = sorted((each for batch in GAPS_AND_PARTS for each in batch), key=end_of)
        assert await house.process().read(task) == wanted
        await assert_tiles_lie_edge_to_edge(house, task)
        house.aws.reset()
        if fault > len(calls):
            break
    assert {"put_item", "query", "transact_write_items"} == set(calls)


@played
async def test_a_batch_that_arrives_after_its_marker_changes_nothing(house: House) -> None:
    log, task = house.process(), house.new_task()
    await log.append(task, entries(1))
    house.aws.before = lambda number, _: OutcomeUnknown("late") if number == 2 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(2, 3, 4))

    await log.append(task, [lost(2, 4), entry(5)])
    await house.aws.deliver()

    assert await log.read(task) == [entry(1), lost(2, 4), entry(5)]


@played
async def test_a_batch_that_was_kept_although_its_answer_was_lost_needs_no_marker(
    house: House,
) -> None:
    log, task = house.process(), house.new_task()
    house.aws.after = lambda number, _: OutcomeUnknown("lost") if number == 1 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, entries(1, 2, 3))

    await log.append(task, [lost(1, 3), entry(4)])

    assert await log.read(task) == entries(1, 2, 3, 4)


@played
async def test_a_marker_for_a_batch_of_which_a_part_was_kept_stands_for_the_rest(
    house: House,
) -> None:
    log, task = house.process(), house.new_task()
    large = [entry(number, noise(150_000, number)) for number in range(1, 6)]
    house.aws.before = lambda number, _: OutcomeUnknown("late") if number > 1 else None
    with pytest.raises(OutcomeUnknown):
        await log.append(task, large)
    house.aws.before = lambda number, _: None

    await log.append(task, [lost(1, 5), entry(6)])
    await house.aws.deliver()

    found = await log.read(task)
    assert found == [*large[:2], lost(3, 5), entry(6)]
    assert covered(found) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TransactionConflict", BackendUnavailable),
        ("ThrottlingError", BackendUnavailable),
        ("ValidationError", BackendRejected),
    ],
)
@played
async def test_a_transaction_that_was_cancelled_for_another_reason_is_told(
    house: House, code: str, kind: type[Exception]
) -> None:
    log, task = house.process(), house.new_task()
    await log.append(task, entries(9))
    reasons = {"CancellationReasons": [{"Code": "None"}, {"Code": code}, {"Code": "None"}]}

    def cancelled(_: int, operation: str) -> Exception | None:
        wanted = operation == "transact_write_items"
        return Refused("TransactionCanceledException", reasons) if wanted else None

    house.aws.before = cancelled

    with pytest.raises(kind, match=code):
        await log.append(task, entries(4))
