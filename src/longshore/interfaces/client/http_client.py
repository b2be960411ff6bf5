"""The HTTP client: the operations of ``services.app.Application``, carried out by a server.

Methods, parameters, documents and errors are those of ``Application``. A listing may be longer
than a page of the server: its pages are collected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
from pydantic.alias_generators import to_camel

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.definitions.reader import split_job_file
from longshore.core.ids import split_task_id
from longshore.core.jobs.submission import read_job, referenced_definitions
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import InvalidJob, NotFound, Problem
from longshore.interfaces.client.transport import HttpTransport, QueryValue
from longshore.services import documents as d
from longshore.services.app import Application, ArtifactContent

_TIMEOUT_S = 30.0
_MAX_PAGE_SIZE = 100
_NO_FILTER = DeadLetterFilter()
_STREAM_DOCUMENTS: Mapping[str, Any] = {
    "event": d.EventDocument,
    "output": d.OutputChunkDocument,
    "end": d.StreamEndDocument,
}

DocumentT = TypeVar("DocumentT", bound=d.ApiDocument)
P = ParamSpec("P")
PageT = TypeVar("PageT", d.JobPage, d.TaskPage, d.DeadLetterPage)


@contextlib.asynccontextmanager
async def open_http_client(
    url: str, key: str, *, user_agent: str, trust_env: bool
) -> AsyncIterator[HttpClient]:
    """A client of the server at ``url``.

    Args:
        trust_env: Whether to use proxies that the environment names.
    """
    async with httpx.AsyncClient(
        base_url=f"{url}/v1/",
        headers={"x-api-key": key, "user-agent": user_agent},
        timeout=_TIMEOUT_S,
        trust_env=trust_env,
    ) as client:
        yield HttpClient(client, url)


def _call(
    method: str,
    path: str,
    operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, DocumentT]],
    *,
    repeatable: bool = False,
) -> Callable[Concatenate[HttpClient, P], Coroutine[Any, Any, DocumentT]]:
    """An operation that is one request; it has the signature and the answer of ``operation``.

    Arguments that the path does not name are the query of a GET, and otherwise the fields of the
    body. ``document`` is the whole body, and ``request_id`` a header.
    """
    signature = inspect.signature(operation)
    kind: type[DocumentT] = getattr(d, signature.return_annotation.removeprefix("d."))
    in_path = re.findall(r"{(\w+)}", path)

    @functools.wraps(operation)
    async def send(self: HttpClient, /, *args: P.args, **kwargs: P.kwargs) -> DocumentT:
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        values = call.arguments
        del values["self"]
        target = path.format_map({name: _quote(name, values.pop(name)) for name in in_path})
        request_id = values.pop("request_id", None)
        fields = {to_camel(name): value for name, value in values.items()}
        if method == "GET":
            return await self._get(kind, target, **fields)
        body = fields.get("document", fields or None)
        how = {"method": method, "request_id": request_id, "repeatable": repeatable}
        return await self._send(kind, target, body, **how)

    return send


class HttpClient(HttpTransport):
    """The operations of the caller that the client's key belongs to."""

    find_ids = _call("GET", "ids", Application.find_ids)
    get_task = _call("GET", "{task_id}", Application.get_task)
    task_statuses = _call("GET", "{job_id}/statuses", Application.task_statuses)
    get_result = _call("GET", "{task_id}/result", Application.get_result)
    why = _call("GET", "{entity_id}/why", Application.why)
    list_artifacts = _call("GET", "{task_id}/artifacts", Application.list_artifacts)
    read_output = _call("GET", "{task_id}/output", Application.read_output)
    list_events = _call("GET", "events", Application.list_events)
    list_job_events = _call("GET", "{job_id}/events", Application.list_job_events)
    list_task_events = _call("GET", "{task_id}/events", Application.list_task_events)
    task_health = _call("GET", "{task_id}/health", Application.task_health)
    last_health_check = _call("GET", "health-check", Application.last_health_check)
    get_dead_letter = _call("GET", "dead-letters/{letter_id}", Application.get_dead_letter)
    list_definitions = _call("GET", "task-definitions", Application.list_definitions)
    get_definition = _call("GET", "task-definitions/{name}", Application.get_definition)
    list_definition_versions = _call(
        "GET", "task-definitions/{name}/versions", Application.list_definition_versions
    )
    list_paused_queues = _call("GET", "queues", Application.list_paused_queues)
    list_keys = _call("GET", "keys", Application.list_keys)
    submit = _call("POST", "jobs", Application.submit)
    add_tasks = _call("POST", "{job_id}/tasks", Application.add_tasks)
    cancel_job = _call("POST", "{job_id}/cancel", Application.cancel_job)
    cancel_task = _call("POST", "{task_id}/cancel", Application.cancel_task)
    resume = _call("POST", "{job_id}/resume", Application.resume)
    approve = _call("POST", "{task_id}/approve", Application.approve)
    revise = _call("POST", "{task_id}/revise", Application.revise)
    run_health_check = _call("POST", "health-check", Application.run_health_check)
    discard_dead_letter = _call(
        "DELETE", "dead-letters/{letter_id}", Application.discard_dead_letter
    )
    pause_queue = _call("POST", "queues/{name}/pause", Application.pause_queue, repeatable=True)
    resume_queue = _call("POST", "queues/{name}/resume", Application.resume_queue)
    create_key = _call("POST", "keys", Application.create_key)
    revoke_key = _call("DELETE", "keys/{key_id}", Application.revoke_key, repeatable=True)

    async def _get(self, kind: type[DocumentT], path: str, **query: QueryValue) -> DocumentT:
        response = await self.request("GET", path, query=query, repeatable=True)
        return d.decode(response.content, kind)

    async def _send(
        self,
        kind: type[DocumentT],
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        **how: Any,
    ) -> DocumentT:
        response = await self.request(method, path, body, **how)
        return d.decode(response.content, kind)

    async def _list(
        self,
        kind: type[PageT],
        path: str,
        field: str,
        limit: int,
        cursor: str | None,
        **query: QueryValue,
    ) -> PageT:
        """A page of up to ``limit`` items, collected from the smaller pages of the server."""
        items: list[Any] = []
        while True:
            size = min(limit - len(items), _MAX_PAGE_SIZE)
            page = await self._get(kind, path, limit=size, cursor=cursor, **query)
            items += getattr(page, field)
            cursor = page.cursor
            if cursor is None or len(items) >= limit:
                setattr(page, field, items)
                return page

    # Jobs and tasks -----------------------------------------------------------------------------

    async def submit_file(
        self,
        document: Any,
        *,
        request_id: str | None = None,
        definitions: Sequence[Definition] = (),
    ) -> d.AcceptedJobDocument:
        own, job, problems = split_job_file(document)
        own = [*definitions, *own]
        await self._validate(job, own, problems)
        for definition in own:
            await self.put_definition(d.definition_request(definition))
        return await self.submit(job, request_id=request_id)

    async def _validate(
        self, job: Any, own: Sequence[Definition], own_problems: Sequence[Problem]
    ) -> None:
        """Check a job file before anything of it is stored."""
        problems = list(own_problems)
        try:
            read_job(job, limit=MAX_TASKS_PER_JOB)
        except InvalidJob as error:
            problems += error.problems
        exists = dict.fromkeys([definition.name for definition in own], True)
        exists |= dict.fromkeys(BUILTIN_DEFINITIONS, True)
        for path, name in referenced_definitions(job):
            if name not in exists:
                exists[name] = await self._definition_exists(name)
            if not exists[name]:
                problems.append(Problem(path=path, message=f"no definition is called {name!r}"))
        if problems:
            raise InvalidJob(problems)

    async def _definition_exists(self, name: str) -> bool:
        try:
            await self.get_definition(name)
        except NotFound:
            return False
        return True

    async def list_jobs(
        self,
        *,
        state: JobState | None = None,
        name: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.JobPage:
        return await self._list(
            d.JobPage,
            *("jobs", "jobs", limit, cursor),
            status=state,
            name=name,
            createdFrom=_time_text(created_from),
            createdBefore=_time_text(created_before),
        )

    async def get_job(self, job_id: str, *, limit: int = 100) -> d.JobDetailDocument:
        job = await self._get(
            d.JobDetailDocument, _entity(job_id), limit=min(limit, _MAX_PAGE_SIZE)
        )
        missing = limit - len(job.tasks)
        if job.cursor is not None and missing > 0:
            page = await self.list_tasks(job_id=job_id, limit=missing, cursor=job.cursor)
            job.tasks, job.cursor = [*job.tasks, *page.tasks], page.cursor
        return job

    async def list_tasks(
        self,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.TaskPage:
        path = _entity(job_id, "tasks") if job_id is not None else "tasks"
        return await self._list(d.TaskPage, path, "tasks", limit, cursor, status=state)

    # Artifacts, output, events ------------------------------------------------------------------

    async def open_artifact(self, task_id: str, name: str) -> ArtifactContent:
        path = f"{_entity(task_id)}/artifacts/{quote(name)}"
        content = (await self.request("GET", path, repeatable=True)).content

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return ArtifactContent(size=len(content), chunks=chunks())

    async def follow_task_output(
        self, task_id: str, *, attempt: int | None = None, after: str = "0.0"
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(task_id, "output/stream"), attempt=attempt, after=after)

    async def follow_job_output(
        self, job_id: str, *, follow: bool = True, attempt: int | None = None
    ) -> AsyncIterator[d.StreamItem]:
        path = _entity(job_id, "output/stream")
        return _without_repeats(self._stream(path, follow=follow, attempt=attempt))

    async def follow_job_events(
        self, job_id: str, *, tasks: bool = True, cursor: str = ""
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(job_id, "events/stream"), tasks=tasks, cursor=cursor)

    async def follow_task_events(
        self, task_id: str, *, after: int = 0
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(task_id, "events/stream"), after=after)

    async def _stream(self, path: str, **query: QueryValue) -> AsyncIterator[d.StreamItem]:
        async for message in self.stream(path, **query):
            data = d.decode(message.data, _STREAM_DOCUMENTS[message.kind])
            yield d.StreamItem(kind=message.kind, id=message.id, data=data)  # type: ignore[arg-type]

    # Health -------------------------------------------------------------------------------------

    async def check_ready(self) -> d.ProbeDocument:
        return await self._get(d.ProbeDocument, f"{self.url}/ready")

    # Dead letters -------------------------------------------------------------------------------

    async def list_dead_letters(
        self,
        dead_filter: DeadLetterFilter = _NO_FILTER,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.DeadLetterPage:
        fields = _filter_fields(dead_filter)
        return await self._list(
            d.DeadLetterPage, "dead-letters", "dead_letters", limit, cursor, **fields
        )

    async def count_dead_letters(
        self, dead_filter: DeadLetterFilter = _NO_FILTER
    ) -> d.DeadLetterCountsDocument:
        return await self._get(
            d.DeadLetterCountsDocument, "dead-letters/counts", **_filter_fields(dead_filter)
        )

    async def replay_dead_letters(self, task_ids: Sequence[str]) -> d.ReplayResultDocument:
        result = d.ReplayResultDocument(replayed=[], skipped=[])
        for start in range(0, len(task_ids), _MAX_PAGE_SIZE):
            body = {"ids": list(task_ids[start : start + _MAX_PAGE_SIZE])}
            part = await self._send(d.ReplayResultDocument, "dead-letters/replay", body)
            result.replayed += part.replayed
            result.skipped += part.skipped
        return result

    async def replay_matching_dead_letters(
        self, dead_filter: DeadLetterFilter
    ) -> d.ReplayResultDocument:
        body = {"matching": _filter_fields(dead_filter)}
        return await self._send(d.ReplayResultDocument, "dead-letters/replay", body)

    # Definitions --------------------------------------------------------------------------------

    async def put_definition(self, document: Mapping[str, Any]) -> d.DefinitionDocument:
        return await self._send(
            d.DefinitionDocument,
            f"task-definitions/{_segment(str(document.get('name') or ''))}",
            dict(document),
            method="PUT",
            repeatable=True,
        )

    async def delete_definition(self, name: str) -> None:
        await self.request("DELETE", f"task-definitions/{_segment(name)}")

    # Queues, budgets, keys ----------------------------------------------------------------------

    async def get_budget(self, entity_id: str | None = None) -> d.BudgetStatusDocument:
        return await self._get(d.BudgetStatusDocument, _budget_path(entity_id))

    async def add_budget(
        self, entity_id: str | None, amount: Budget, *, request_id: str | None = None
    ) -> d.BudgetStatusDocument:
        body = d.to_dict(d.from_record(d.BudgetDocument, amount))
        path = _budget_path(entity_id)
        return await self._send(d.BudgetStatusDocument, path, body, request_id=request_id)


async def _without_repeats(stream: AsyncIterator[d.StreamItem]) -> AsyncIterator[d.StreamItem]:
    """The output of a job without the chunks that come again after a reconnect."""
    positions: dict[str, tuple[int, int]] = {}
    async for item in stream:
        if isinstance(chunk := item.data, d.OutputChunkDocument):
            position = (chunk.attempt, chunk.sequence)
            if position <= positions.get(chunk.task_id, (0, 0)):
                continue
            positions[chunk.task_id] = position
        yield item


def _segment(text: str) -> str:
    """Text as one segment of a path, with any characters."""
    return quote(text, safe="") or "-"


def _quote(argument: str, text: str) -> str:
    """An argument as a part of a path; a job or task has its own path."""
    return _entity(text) if argument in ("job_id", "task_id", "entity_id") else _segment(text)


def _entity(entity_id: str, *parts: str) -> str:
    """The path of a job or task, or of a part of it."""
    job_id, key = split_task_id(entity_id)
    task = ("tasks", _segment(key)) if key else ()
    return "/".join(["jobs", _segment(job_id), *task, *parts])


def _budget_path(entity_id: str | None) -> str:
    return "budget" if entity_id is None else _entity(entity_id, "budget")


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _filter_fields(dead_filter: DeadLetterFilter) -> dict[str, str | None]:
    return {
        "queue": dead_filter.queue,
        "name": dead_filter.definition,
        "category": dead_filter.category.value if dead_filter.category else None,
        "jobId": dead_filter.job_id,
        "since": _time_text(dead_filter.since),
    }
