"""What is known of a dead letter: its attempts with their errors, and the last lines it printed."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory
from longshore.ports.output import OutputChunk, Stream
from longshore.services import documents as d
from longshore.services.dead_letters import read_post_mortem
from tests.factories import a_failure
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

A = task_id("a")


async def post_mortem(harness: ServiceHarness, letter_id: str = A) -> d.PostMortemDocument:
    letter = await harness.dead_letters.get(TENANT, letter_id)
    return await read_post_mortem(harness.backend, letter)


async def prints(
    harness: ServiceHarness, attempt: int, *chunks: tuple[Stream, bytes], **fields: Any
) -> None:
    entries = [
        OutputChunk(
            attempt=attempt,
            sequence=sequence,
            at=harness.clock.now(),
            stream=stream,
            data=data,
            **fields,
        )
        for sequence, (stream, data) in enumerate(chunks, start=1)
    ]
    await harness.backend.output.append(A, entries)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_each_attempt_is_there_with_its_error(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A, ErrorCategory.NETWORK)
        await harness.advance(60 * SECOND)
        await harness.fail(A, ErrorCategory.VALIDATION)

        result = await post_mortem(harness)

        assert [(item.attempt, item.category, item.outcome) for item in result.attempts] == [
            (1, "network", "failed"),
            (2, "validation", "failed"),
        ]
        assert (result.ended_by, result.error) == ("worker", "broke")


@scenario
async def test_who_ended_it_is_that_of_the_last_round(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(maxAttempts=1))
        await harness.fail(A)
        dead = harness.dead_letters
        await dead.replay(TENANT, [A], by="ann")
        await exhaust_receives(harness)
        await dead.settle_messages()

        result = await post_mortem(harness)

        assert result.ended_by == "dlq"
        assert [(item.attempt, item.round) for item in result.attempts] == [(1, 1)]


@scenario
async def test_a_task_whose_time_was_up_was_ended_by_its_worker(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(A)
        late = c.TimeOut(
            fence=claimed.fence, timeout=SECOND, elapsed=2 * SECOND, signal="SIGKILL", jitter=0.0
        )
        await harness.transitions.apply_to_task(A, late)

        result = await post_mortem(harness)

        assert result.ended_by == "worker"
        assert result.attempts[0].outcome == "timed out"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_long_history_is_read_to_its_end(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        row = await harness.claim(A)
        for _ in range(1001):
            row = await harness.transitions.apply_to_task(
                A, c.Renew(fence=row.fence, lease_duration=LEASE.duration), row=row
            )
        harness.clock.advance(LEASE.duration + LEASE.skew_margin)
        ended = c.LeaseEnded(fence=row.fence, margin=LEASE.skew_margin)
        await harness.transitions.apply_to_task(A, ended)
        await harness.advance(60 * SECOND)
        await harness.fail(A)

        result = await post_mortem(harness)

        assert [item.category for item in result.attempts] == ["crash", "validation"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await prints(harness, 1, (Stream.STDOUT, b"of the first attempt\n"))
        await harness.fail(A, ErrorCategory.NETWORK)
        await harness.advance(60 * SECOND)
        await prints(
            harness,
            2,
            *((Stream.STDOUT, b"line %d\n" % number) for number in range(8)),
            (Stream.STDOUT, b"in two pie"),
            (Stream.STDERR, b"password=hunter2 \x1b[31mred\r\n"),
            (Stream.STDOUT, b"ces\nand \xff the last"),
        )
        await harness.fail(A)

        result = await post_mortem(harness)

        shown = [(line.stream, line.text) for line in result.last_lines]
        assert shown[:7] == [(Stream.STDOUT, f"line {number}") for number in range(1, 8)]
        assert shown[7][0] == Stream.STDERR
        assert "hunter2" not in shown[7][1]
        assert "\x1b" not in shown[7][1]
        assert shown[7][1].endswith("red")
        assert shown[8:] == [
            (Stream.STDOUT, "in two pieces"),
            (Stream.STDOUT, "and � the last"),
        ]


@scenario
async def test_of_a_great_deal_of_output_only_the_end_is_read(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        pieces = [(Stream.STDOUT, b"line %d\n" % number) for number in range(5000)]
        await prints(harness, 1, *pieces)
        row = await harness.claim(A)
        failed = c.AttemptFailed(
            fence=row.fence,
            failure=a_failure(ErrorCategory.VALIDATION),
            jitter=0.0,
            duration=SECOND,
            last_output=5000,
        )
        await harness.transitions.apply_to_task(A, failed)
        read: list[int] = []

        class Counting:
            async def read(self, *values: Any, **named: Any) -> list[OutputChunk]:
                batch = await backend.output.read(*values, **named)
                read.append(len(batch))
                return batch

        result = await post_mortem(harness.with_ports(output=Counting()))

        assert [line.text for line in result.last_lines] == [
            f"line {number}" for number in range(4990, 5000)
        ]
        assert sum(read) <= 200


@scenario
async def test_lost_output_is_passed_over(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await prints(
            harness, 1, (Stream.STDOUT, b"one\n"), (Stream.LOST, b""), (Stream.STDOUT, b"2")
        )
        await harness.fail(A)

        assert [line.text for line in (await post_mortem(harness)).last_lines] == ["one", "2"]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_has_no_history(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await send(harness, "poison")
        await exhaust_receives(harness)
        (letter,) = (await harness.dead_letters.list_page(TENANT)).items

        result = await post_mortem(harness, letter.id)

        assert (result.id, result.attempts, result.last_lines) == (letter.id, [], [])
