"""Documents: what is moved out of an event is found again by exactly that event."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ByteSize

from longshore.core.documents import EncodedJson
from longshore.core.events.codec import properties_of
from longshore.core.jobs import job as jobs
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import TaskState
from longshore.errors import UsageError
from longshore.services.spill import DocumentStore
from longshore.settings import Settings
from longshore.settings.model import SizesSettings
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from longshore.testing.worker_registry import FakeWorkerRegistry
from longshore.wiring.services import Services
from tests.factories import NOON, a_job, changed

MANY = 20_000


def job_end_change(job: JobRow, change_id: str, status: str) -> Change[JobRow]:
    """The end of a job, with so many statuses that they do not fit in the event."""
    ended = jobs.EndedTask(number=0, key="a", round=1, state=TaskState.COMPLETED)
    statuses = {f"{status}-{number}": status for number in range(MANY)}
    command = jobs.TasksEnded(tasks=(ended,), statuses=statuses)
    return changed(jobs.apply(job, command, now=NOON, change_id=change_id))


def test_two_processes_that_emit_the_same_event_do_not_overwrite_the_payload() -> None:
    job = a_job(1)
    first = job_end_change(job, "change-1", "first")
    second = job_end_change(job, "change-2", "second")

    async def scenario() -> tuple[dict[str, Any], dict[str, Any]]:
        documents = DocumentStore(memory_backend(FakeClock()).blobs)
        (winner,) = (await documents.spill(first)).events
        (loser,) = (await documents.spill(second)).events
        assert winner.id == loser.id
        assert replace(winner, overflow=None, body=loser.body) == replace(loser, overflow=None)
        return (
            await documents.restore(properties_of(winner)),
            await documents.restore(properties_of(loser)),
        )

    won, lost = asyncio.run(scenario())

    assert set(won["taskStatuses"].values()) == {"first"}
    assert set(lost["taskStatuses"].values()) == {"second"}


def test_how_long_a_document_in_a_row_may_be_is_a_setting() -> None:
    async def stored(limit: int | None) -> tuple[bool, Any]:
        settings = Settings() if limit is None else Settings(sizes=sizes_of(limit))
        services = Services(
            settings=settings,
            backend=memory_backend(FakeClock()),
            worker_registry=FakeWorkerRegistry(),
            new_id=lambda: "id",
        )
        document = await services.documents.store("x" * 2_000, "key")
        assert document.size == 2_002
        return document.key is None, await services.documents.load(document)

    def sizes_of(limit: int) -> SizesSettings:
        return SizesSettings(inline_result_bytes=ByteSize(limit))

    assert asyncio.run(stored(None)) == (False, "x" * 2_000)
    assert asyncio.run(stored(2_001)) == (False, "x" * 2_000)
    assert asyncio.run(stored(2_002)) == (True, "x" * 2_000)


def test_text_that_stays_encoded_is_stored_as_it_is_alone_and_as_a_field() -> None:
    text = b'{"a": 1.50, "b": "' + b"x" * 300_000 + b'"}'

    async def scenario() -> None:
        documents = DocumentStore(memory_backend(FakeClock()).blobs)
        checked: list[object] = []
        document = await documents.store(EncodedJson(text, checked.append), "one")
        fields = {"step": "é", "result": EncodedJson(text), "previous": None}
        await documents.store_key("two", fields)

        assert (document.key, document.size, checked) == ("one", len(text), [text])
        assert await documents.blobs.get("one") == text
        assert await documents.load(document) == json.loads(text)
        stored = {"step": "é", "result": json.loads(text), "previous": None}
        assert await documents.load_key("two") == stored

    asyncio.run(scenario())


def test_text_that_is_too_long_or_refused_by_its_check_is_not_stored() -> None:
    def refuse(_: object) -> None:
        message = "not JSON"
        raise ValueError(message)

    async def scenario() -> None:
        documents = DocumentStore(memory_backend(FakeClock()).blobs)
        with pytest.raises(UsageError, match="12 bytes as JSON, and at most 11"):
            await documents.store(EncodedJson(b"[1,2,3,4,50]"), "one", limit_bytes=11)
        with pytest.raises(ValueError, match="not JSON"):
            await documents.store(EncodedJson(b"[", refuse), "one")
        assert await documents.blobs.size("one") is None

    asyncio.run(scenario())
