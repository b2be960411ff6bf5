"""What is known of a dead letter: its attempts with their errors, and the last lines it printed."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory
from longshore.ports.output import OutputChunk, Stream
from longshore.services.dead_letters import PostMortem, read_post_mortem
from tests.factories import a_failure
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

A = task_id("a")


async def post_mortem(harness: ServiceHarness, letter_id: str = A) -> PostMortem:
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
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.fail(A, ErrorCategory.NETWORK)
        await stage.advance(60 * SECOND)
        await stage.fail(A, ErrorCategory.VALIDATION)

        found = await post_mortem(stage)

        assert [(one.number, one.category, one.outcome) for one in found.attempts] == [
            (1, "network", "failed"),
            (2, "validation", "failed"),
        ]
        assert (found.ended_by, found.letter.reason) == ("worker", "broke")


@scenario
async def test_who_ended_it_is_that_of_the_last_round(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task(maxAttempts=1))
        await stage.fail(A)
        dead = stage.dead_letters
        await dead.replay(TENANT, [A], by="ann")
        await exhaust_receives(stage)
        await dead.settle_messages()

        found = await post_mortem(stage)

        assert found.ended_by == "dlq"
        assert [(one.number, one.round) for one in found.attempts] == [(1, 1)]


@scenario
async def test_a_task_whose_time_was_up_was_ended_by_its_worker(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        claimed = await stage.claim(A)
        late = c.TimeOut(
            fence=claimed.fence, timeout=SECOND, elapsed=2 * SECOND, signal="SIGKILL", jitter=0.0
        )
        await stage.transitions.apply_to_task(A, late)

        found = await post_mortem(stage)

        assert found.ended_by == "worker"
        assert found.attempts[0].outcome == "timed out"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_long_history_is_read_to_its_end(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        row = await stage.claim(A)
        for _ in range(1001):
            row = await stage.transitions.apply_to_task(
                A, c.Renew(fence=row.fence, lease_duration=LEASE.duration), row=row
            )
        stage.clock.advance(LEASE.duration + LEASE.skew_margin)
        ended = c.LeaseEnded(fence=row.fence, margin=LEASE.skew_margin)
        await stage.transitions.apply_to_task(A, ended)
        await stage.advance(60 * SECOND)
        await stage.fail(A)

        found = await post_mortem(stage)

        assert [one.category for one in found.attempts] == ["crash", "validation"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await prints(stage, 1, (Stream.STDOUT, b"of the first attempt\n"))
        await stage.fail(A, ErrorCategory.NETWORK)
        await stage.advance(60 * SECOND)
        await prints(
            stage,
            2,
            *((Stream.STDOUT, b"line %d\n" % number) for number in range(8)),
            (Stream.STDOUT, b"in two pie"),
            (Stream.STDERR, b"password=hunter2 \x1b[31mred\r\n"),
            (Stream.STDOUT, b"ces\nand \xff the last"),
        )
        await stage.fail(A)

        found = await post_mortem(stage)

        shown = [(line.stream, line.text) for line in found.last_lines]
        assert shown[:7] == [(Stream.STDOUT, f"line {number}") for number in range(1, 8)]
        assert shown[7][0] is Stream.STDERR
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
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        pieces = [(Stream.STDOUT, b"line %d\n" % number) for number in range(5000)]
        await prints(stage, 1, *pieces)
        row = await stage.claim(A)
        failed = c.AttemptFailed(
            fence=row.fence,
            failure=a_failure(ErrorCategory.VALIDATION),
            jitter=0.0,
            duration=SECOND,
            last_output=5000,
        )
        await stage.transitions.apply_to_task(A, failed)
        read: list[int] = []

        class Counting:
            async def read(self, *values: Any, **named: Any) -> list[OutputChunk]:
                batch = await backend.output.read(*values, **named)
                read.append(len(batch))
                return batch

        found = await post_mortem(stage.with_ports(output=Counting()))

        assert [line.text for line in found.last_lines] == [
            f"line {number}" for number in range(4990, 5000)
        ]
        assert sum(read) <= 200


@scenario
async def test_lost_output_is_passed_over(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await prints(stage, 1, (Stream.STDOUT, b"one\n"), (Stream.LOST, b""), (Stream.STDOUT, b"2"))
        await stage.fail(A)

        assert [line.text for line in (await post_mortem(stage)).last_lines] == ["one", "2"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_has_no_history(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await send(stage, "poison")
        await exhaust_receives(stage)
        (letter,) = (await stage.dead_letters.list_page(TENANT)).items

        found = await post_mortem(stage, letter.id)

        assert found == PostMortem(letter=letter)
