"""Queues are paused and resumed; the events record who did it and for what reason."""

import logging
from pathlib import Path

import pytest

from longshore.core.maximums import REASON_LIMIT_CHARACTERS
from longshore.core.queues import QueuePause
from longshore.errors import UsageError
from tests.unit.services.harness import BACKENDS, SECOND, ServiceHarness, open_backend, scenario


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_who_paused_a_queue_since_when_and_why_can_be_seen(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        pausing = ServiceHarness(backend).operator_commands

        claimed = await pausing.pause_queue("default", by="ann", reason="the service is down")

        now = backend.clock.now()
        assert claimed == QueuePause(name="default", by="ann", reason="the service is down", at=now)
        assert await backend.queue_controls.list_pauses() == [claimed]
        assert await pausing.resume_queue("default", by="bob") == claimed
        assert await backend.queue_controls.list_pauses() == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_second_pause_returns_the_existing_pause(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        pausing = ServiceHarness(backend).operator_commands
        first = await pausing.pause_queue("default", by="ann")
        backend.clock.advance(SECOND)

        assert await pausing.pause_queue("default", by="bob", reason="a fire") == first


@pytest.mark.parametrize("reason", ["", "  \n "])
@scenario
async def test_a_blank_reason_counts_as_none(tmp_path: Path, reason: str) -> None:
    async with open_backend("memory", tmp_path) as backend:
        claimed = await ServiceHarness(backend).operator_commands.pause_queue(
            "default", by="ann", reason=reason
        )

        assert claimed.reason is None


@pytest.mark.parametrize("name", ["", "a b", "../etc", "x" * 65, "ä"], ids=ascii)
@scenario
async def test_an_invalid_queue_name_is_refused_and_changes_nothing(
    tmp_path: Path, name: str
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        pausing = ServiceHarness(backend).operator_commands
        with pytest.raises(UsageError, match="the name of a queue must match"):
            await pausing.pause_queue(name, by="ann")
        with pytest.raises(UsageError, match="the name of a queue must match"):
            await pausing.resume_queue(name, by="ann")

        assert await backend.queue_controls.list_pauses() == []


@pytest.mark.parametrize(
    "reason", ["x" * (REASON_LIMIT_CHARACTERS + 1), "\ud800", "\x1b[2J"], ids=len
)
@scenario
async def test_a_reason_that_cannot_be_kept_is_refused_and_changes_nothing(
    tmp_path: Path, reason: str
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        with pytest.raises(UsageError, match="the reason must"):
            await ServiceHarness(backend).operator_commands.pause_queue(
                "default", by="ann", reason=reason
            )

        assert await backend.queue_controls.list_pauses() == []


@scenario
async def test_who_resumed_a_queue_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_backend("memory", tmp_path) as backend:
        pausing = ServiceHarness(backend).operator_commands
        await pausing.pause_queue("default", by="ann", reason="a flood")
        await pausing.resume_queue("default", by="bob")
        await pausing.resume_queue("default", by="eve")

    notices = [record for record in caplog.records if record.msg.startswith("queue.")]
    assert [record.msg for record in notices] == ["queue.paused", "queue.resumed"]
    assert (notices[1].by, notices[1].paused_by, notices[1].reason) == ("bob", "ann", "a flood")
