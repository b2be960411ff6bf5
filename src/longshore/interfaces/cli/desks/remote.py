"""The desk behind a server: everything is asked over its API."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadFilter
from longshore.core.ids import split_task_id
from longshore.core.limits import TASKS_PER_JOB
from longshore.core.states import JobState, TaskState
from longshore.errors import CommandRefused, ConfigurationError, NotFound
from longshore.interfaces import views
from longshore.interfaces.cli import naming
from longshore.interfaces.cli.desks.contexts import Context, is_loopback
from longshore.interfaces.cli.desks.desk import Desk, Document, Submitted
from longshore.interfaces.cli.desks.wire import Query, Wire
from longshore.interfaces.cli.naming import Named
from longshore.interfaces.definition_documents import request_document
from longshore.interfaces.job_files import checked_file
from longshore.ports.clock import Clock
from longshore.ports.output import OutputEntry, Stream
from longshore.services.crew import Crew
from longshore.services.following import Piece
from longshore.settings import Settings

_ANSWERS_WITHIN_S = 30.0
_MOST_A_PAGE = 100
_MOST_PIECES = 1_000


@contextlib.asynccontextmanager
async def connected(context: Context, settings: Settings) -> AsyncIterator[Desk]:
    """The desk of a server.

    Raises:
        ConfigurationError: there is no key to it, or the key would cross a network in the clear.
    """
    from longshore.wiring import system_clock

    key = _key_to(context, settings)
    async with httpx.AsyncClient(
        base_url=f"{context.url}/v1/",
        headers={"x-api-key": key, "user-agent": "longshore-cli"},
        timeout=_ANSWERS_WITHIN_S,
        # A proxy from the environment has no business between this machine and itself.
        trust_env=not is_loopback(context.url),
    ) as client:
        yield RemoteDesk(Wire(client, context.url), context.url, system_clock())


def _key_to(context: Context, settings: Settings) -> str:
    near = is_loopback(context.url)
    if not near and not context.insecure and context.url.startswith("http:"):
        problem = (
            f"{context.url}: the key would cross the network in the clear; use https, or "
            "`longshore contexts add --insecure` if that network is yours alone"
        )
        raise ConfigurationError([problem])
    if context.key is not None:
        return context.key
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    from longshore.wiring import machine_key

    # The key that this machine made for itself is for this machine alone.
    if near and (own := machine_key(settings)) is not None:
        return own
    place = str(settings.data_dir.absolute())
    hint = f", or --data-dir names the folder of a server here (not {place!r})" if near else ""
    problem = (
        f"there is no key to {context.url}: set LONGSHORE_API_KEY, or remember one with "
        f"`longshore contexts add`{hint}"
    )
    raise ConfigurationError([problem])


class RemoteDesk:
    """Asks a server."""

    def __init__(self, wire: Wire, url: str, clock: Clock) -> None:
        self._wire = wire
        self._url = url
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    async def find(self, text: str) -> Named:
        async def ids(prefix: str) -> list[str]:
            answer = await self._wire.get("ids", prefix=prefix, limit=naming.MOST_IDS)
            found: list[str] = answer["ids"]
            return found

        return await naming.find(ids, f"at {self._url}", text)

    # Looking ------------------------------------------------------------------------------------

    async def jobs(self, *, state: JobState | None, limit: int, cursor: str | None) -> Document:
        return await self._pages("jobs", "jobs", limit, cursor, {"status": state})

    async def _pages(
        self, path: str, items_in: str, limit: int, cursor: str | None, query: Query
    ) -> Document:
        """So many things of a listing, however few the server gives at once."""
        items: list[Document] = []
        page: Document = {}
        while len(items) < limit:
            most = min(limit - len(items), _MOST_A_PAGE)
            page = await self._wire.get(path, limit=most, cursor=cursor, **query)
            items += page[items_in]
            cursor = page["cursor"]
            if cursor is None:
                break
        return {**page, items_in: items, "cursor": cursor}

    async def job(self, job_id: str) -> Document:
        document: Document = await self._wire.get(f"jobs/{_part(job_id)}", limit=_MOST_A_PAGE)
        cursor = document.pop("cursor")
        while cursor is not None:
            path = f"jobs/{_part(job_id)}/tasks"
            page = await self._wire.get(path, limit=_MOST_A_PAGE, cursor=cursor)
            document["tasks"] += page["tasks"]
            cursor = page["cursor"]
        return document

    async def tasks(
        self, *, job_id: str | None, state: TaskState | None, limit: int, cursor: str | None
    ) -> Document:
        path = f"jobs/{_part(job_id)}/tasks" if job_id else "tasks"
        return await self._pages(path, "tasks", limit, cursor, {"status": state})

    async def task(self, task_id: str) -> Document:
        document: Document = await self._wire.get(_path(task_id))
        return document

    async def keys(self, job_id: str) -> list[str]:
        return list((await self._wire.get(f"jobs/{_part(job_id)}/statuses"))["statuses"])

    async def events(self, named: Named, *, every: bool, follow: bool) -> AsyncIterator[Document]:
        of_task = named.task_id is not None
        path = f"{_entity(named)}/events"
        whole = {} if of_task else {"tasks": "true" if every else "false"}
        if follow:
            async for told in self._wire.stream(f"{path}/stream", **whole):
                yield told.data
            return
        place: dict[str, str | int | None] = {}
        while True:
            page = await self._wire.get(path, limit=_MOST_PIECES, **whole, **place)
            for event in page["events"]:
                yield event
            if of_task and page["events"]:
                place = {"after": page["events"][-1]["sequence"]}
            elif not of_task and page["cursor"] is not None:
                place = {"cursor": page["cursor"]}
            else:
                return

    async def output(
        self, named: Named, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[Piece]:
        path = f"{_entity(named)}/output"
        if named.task_id is None:
            pieces = self._of_job(path, follow=follow, attempt=attempt)
        elif follow:
            stream = self._wire.stream(f"{path}/stream", attempt=attempt)
            pieces = (told.data async for told in stream)
        else:
            pieces = self._so_far(path, attempt=attempt)
        async for piece in pieces:
            yield Piece(piece["taskId"], _entry(piece))

    async def _so_far(self, path: str, *, attempt: int | None) -> AsyncIterator[Document]:
        after: str | None = None
        while True:
            page = await self._wire.get(path, limit=_MOST_PIECES, after=after, attempt=attempt)
            for piece in page["output"]:
                yield piece
            if not page["output"]:
                return
            after = page["output"][-1]["id"]

    async def _of_job(
        self, path: str, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[Document]:
        """A whole job has no place to take up again from: what is known already is passed over."""
        seen: dict[str, tuple[int, int]] = {}
        going_on = "true" if follow else "false"
        async for told in self._wire.stream(f"{path}/stream", follow=going_on, attempt=attempt):
            piece = told.data
            place = (piece["attempt"], piece["sequence"])
            if place > seen.get(piece["taskId"], (0, 0)):
                seen[piece["taskId"]] = place
                yield piece

    async def artifact(self, task_id: str, attempt: int, name: str) -> bytes:
        path = f"{_path(task_id)}/artifacts/attempt-{attempt}/{quote(name)}"
        return (await self._wire.answer("GET", path, repeatable=True)).content

    async def why(self, named: Named) -> Document:
        answer: Document = await self._wire.get(f"{_entity(named)}/why")
        return answer

    async def health(self, task_id: str) -> Document:
        answer: Document = await self._wire.get(f"{_path(task_id)}/health")
        return answer

    async def check_health(self) -> Document:
        answer: Document = await self._wire.send("POST", "health-check")
        return answer

    # Wishes -------------------------------------------------------------------------------------

    async def submit(self, document: Any, request_id: str) -> Submitted:
        definitions, job = await checked_file(document, known=self._knows, task_limit=TASKS_PER_JOB)
        for definition in definitions:
            await self.define(request_document(definition))
        answer = await self._wire.answer("POST", "jobs", job, request_id=request_id)
        created = answer.status_code == HTTPStatus.CREATED
        told = {**answer.json(), "requestId": request_id, "created": created}
        return Submitted(told, created)

    async def _knows(self, name: str) -> bool:
        try:
            await self.definition(name, None)
        except NotFound:
            return False
        return True

    async def add(self, job_id: str, document: Any, request_id: str) -> Document:
        path = f"jobs/{_part(job_id)}/tasks"
        answer: Document = await self._wire.send("POST", path, document, request_id=request_id)
        return answer

    async def cancel(self, named: Named, *, reason: str | None) -> Document:
        body = {"reason": reason} if reason else {}
        answer: Document = await self._wire.send("POST", f"{_entity(named)}/cancel", body)
        return answer

    async def resume(self, named: Named) -> Document:
        body = {"tasks": [split_task_id(named.task_id)[1]]} if named.task_id else {}
        path = f"jobs/{_part(named.job_id)}/resume"
        answer: Document = await self._wire.send("POST", path, body)
        if not answer["tasks"]:
            why = next(
                iter(answer["refused"].values()), "nothing of it has failed or was cancelled"
            )
            raise CommandRefused(named.task_id or named.job_id, why)
        return answer

    async def approve(self, task_id: str) -> Document:
        answer: Document = await self._wire.send("POST", f"{_path(task_id)}/approve", {})
        return answer

    async def revise(self, task_id: str, feedback: str) -> Document:
        body = {"feedback": feedback}
        answer: Document = await self._wire.send("POST", f"{_path(task_id)}/revise", body)
        return answer

    async def budget(self, named: Named | None) -> Document:
        answer: Document = await self._wire.get(_budget(named))
        return answer

    async def add_budget(self, named: Named | None, more: Budget, *, request_id: str) -> Document:
        path, body = _budget(named), views.budget_document(more)
        answer: Document = await self._wire.send("POST", path, body, request_id=request_id)
        return answer

    def crew(self, queues: tuple[str, ...]) -> Crew | None:
        return None

    # Dead letters -------------------------------------------------------------------------------

    async def dead_page(self, wanted: DeadFilter, *, limit: int, cursor: str | None) -> Document:
        return await self._pages("dead-letters", "deadLetters", limit, cursor, _query(wanted))

    async def dead_matching(self, wanted: DeadFilter) -> AsyncIterator[Document]:
        cursor: str | None = None
        while True:
            page = await self._wire.get(
                "dead-letters", limit=_MOST_A_PAGE, cursor=cursor, **_query(wanted)
            )
            for letter in page["deadLetters"]:
                yield letter
            cursor = page["cursor"]
            if cursor is None:
                return

    async def dead(self, letter_id: str) -> Document:
        answer: Document = await self._wire.get(f"dead-letters/{_part(letter_id)}")
        return answer

    async def replay(self, task_ids: Sequence[str]) -> Document:
        replayed: Document = {"replayed": [], "movedOn": []}
        for start in range(0, len(task_ids), _MOST_A_PAGE):
            body = {"ids": list(task_ids[start : start + _MOST_A_PAGE])}
            answer = await self._wire.send("POST", "dead-letters/replay", body)
            replayed = {name: [*done, *answer[name]] for name, done in replayed.items()}
        return replayed

    async def discard(self, letter_id: str) -> None:
        await self._wire.send("DELETE", f"dead-letters/{_part(letter_id)}")

    def who_works(self, queues: Sequence[str]) -> str | None:
        return None  # that is the server's business

    # The house ----------------------------------------------------------------------------------

    async def paused(self) -> list[Document]:
        found: list[Document] = (await self._wire.get("queues"))["paused"]
        return found

    async def pause(self, queue: str, *, reason: str | None) -> Document:
        body = {"reason": reason} if reason else {}
        path = f"queues/{_part(queue)}/pause"
        answer: Document = await self._wire.send("POST", path, body, repeatable=True)
        return answer

    async def unpause(self, queue: str) -> Document | None:
        answer: Document = await self._wire.send("POST", f"queues/{_part(queue)}/resume")
        return answer

    async def definitions(self) -> list[Document]:
        found: list[Document] = (await self._wire.get("task-definitions"))["definitions"]
        return found

    async def definition(self, name: str, version: int | None) -> Document:
        found: Document = await self._wire.get(f"task-definitions/{_part(name)}", version=version)
        return found

    async def define(self, document: Mapping[str, Any]) -> Document:
        path = f"task-definitions/{_part(str(document.get('name') or ''))}"
        stored: Document = await self._wire.send("PUT", path, dict(document), repeatable=True)
        return stored

    async def undefine(self, name: str) -> None:
        await self._wire.send("DELETE", f"task-definitions/{_part(name)}")

    async def access_keys(self) -> list[Document]:
        found: list[Document] = (await self._wire.get("keys"))["keys"]
        return found

    async def new_key(self, name: str, scopes: Sequence[str]) -> Document:
        body = {"name": name, "scopes": list(scopes)}
        made: Document = await self._wire.send("POST", "keys", body)
        return made

    async def revoke_key(self, key_id: str) -> Document:
        path = f"keys/{_part(key_id)}"
        revoked: Document = await self._wire.send("DELETE", path, repeatable=True)
        return revoked


def _part(text: str) -> str:
    """Text as one part of a path, whatever a person typed."""
    return quote(text, safe="") or "-"


def _path(task_id: str) -> str:
    job_id, key = split_task_id(task_id)
    return f"jobs/{_part(job_id)}/tasks/{_part(key)}"


def _budget(named: Named | None) -> str:
    return "budget" if named is None else f"{_entity(named)}/budget"


def _entity(named: Named) -> str:
    return _path(named.task_id) if named.task_id else f"jobs/{_part(named.job_id)}"


def _query(wanted: DeadFilter) -> dict[str, str | int | None]:
    return {
        "queue": wanted.queue,
        "name": wanted.definition,
        "category": wanted.category.value if wanted.category else None,
        "jobId": wanted.job_id,
        "since": views.moment(wanted.since),
    }


def _entry(piece: Document) -> OutputEntry:
    data = piece.get("base64")
    return OutputEntry(
        attempt=piece["attempt"],
        sequence=piece["sequence"],
        at=datetime.fromisoformat(piece["at"]),
        stream=Stream(piece["stream"]),
        data=base64.b64decode(data) if data else piece["text"].encode(),
        last=piece.get("lastSequence"),
    )
