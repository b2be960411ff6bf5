"""Every operation gives the same documents from ``Application`` and over HTTP.

Each case runs on two copies of one store, with the same clock and the same source of ids: once on
``Application``, once through HTTP client, REST and ``Application``. The documents are compared
field by field.
"""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from longshore.core.api_keys import NO_LIMITS, ApiScope, Rate, WorkLimits
from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.reader import read_definition
from longshore.core.documents import attempt_file_key
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import (
    AlreadyExists,
    CommandRefused,
    InvalidJob,
    NotAllowed,
    NotFound,
    UsageError,
)
from longshore.interfaces.client.http_client import HttpClient
from longshore.interfaces.rest.app import create_app
from longshore.ports.output import OutputChunk, Stream
from longshore.ports.task_queue import OutgoingMessage
from longshore.services.api_keys import ApiKeys
from longshore.services.app import Application, ArtifactContent, Caller
from longshore.services.documents import ApiDocument, to_dict
from longshore.services.submit import Submission
from longshore.settings import Settings
from longshore.settings.model import ApiSettings
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from longshore.testing.worker_registry import FakeWorkerRegistry
from longshore.wiring.services import Services
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.conftest import At

TENANT = "acme"
SECOND = timedelta(seconds=1)
TIMEOUT_S = 60
URL = "http://longshore.test"
Operations = Application | HttpClient
Case = Callable[[Operations], Awaitable[Any]]


def job_id(request_id: str) -> str:
    return job_id_of(TENANT, request_id)


def task_id(request_id: str, key: str) -> str:
    return task_id_of(job_id(request_id), key)


def a_task(key: str, *parents: str, **fields: Any) -> dict[str, Any]:
    task = {"taskId": key, "name": "command", "input": {"argv": ["true"]}, **fields}
    return {**task, "dependsOn": list(parents)} if parents else task


# The store --------------------------------------------------------------------------------------


@dataclass
class Store:
    """Services on a memory backend, with a fixed clock and counted ids."""

    services: Services
    clock: FakeClock
    key: str = ""

    async def claim(self, request_id: str, key: str) -> Any:
        claim = c.Claim(worker_id="worker-1", process_id=1, lease_duration=timedelta(minutes=1))
        return await self.services.transitions.apply_to_task(task_id(request_id, key), claim)

    async def complete(self, request_id: str, key: str, result: Any) -> None:
        row = await self.claim(request_id, key)
        self.clock.advance(SECOND)
        stored = await self.services.documents.store(result, f"results/{row.id}")
        done = c.Complete(fence=row.fence, result=stored, duration=SECOND)
        await self.services.transitions.apply_to_task(row.id, done, row=row)
        await self.dispatch()

    async def fail(self, request_id: str, key: str) -> None:
        row = await self.claim(request_id, key)
        failure = Failure(category=ErrorCategory.EXIT_CODE, message="broke", exit_code=3)
        command = c.AttemptFailed(fence=row.fence, failure=failure, jitter=0.0, duration=SECOND)
        await self.services.transitions.apply_to_task(row.id, command, row=row)
        await self.dispatch()

    async def dispatch(self) -> None:
        while await self.services.dispatcher.step(timedelta(0)):
            pass

    async def submit(self, request_id: str, *tasks: dict[str, Any], **fields: Any) -> None:
        document = {"tasks": list(tasks), **fields}
        await self.services.producer.submit(TENANT, request_id, document)


def empty_store() -> Store:
    clock, ids, secrets = FakeClock(), count(1), count(1)
    settings = Settings(tenant=TENANT)
    services = Services(
        settings=settings,
        backend=memory_backend(clock, atomic=True, direct=False),
        worker_registry=FakeWorkerRegistry(),
        new_id=lambda: f"id-{next(ids)}",
    )
    services.__dict__["api_keys"] = ApiKeys(
        backend=services.backend,
        app=settings.app,
        rate=Rate(per_second=1000, burst=1000),
        random_bytes=lambda size: next(secrets).to_bytes(size, "big"),
    )
    return Store(services, clock)


async def full_store() -> Store:
    """A store with jobs in every state, and something for every operation to answer with."""
    store = empty_store()
    services, backend = store.services, store.services.backend
    services.api_keys.set_operator_tenant(TENANT)
    _, store.key = await services.api_keys.create(
        TENANT, name="ann", scopes=(ApiScope.ADMIN,), by="setup"
    )
    for timeout in ("1m", "2m"):
        fields = {"name": "report", "runner": "command", "timeout": timeout}
        limits = {"resources": {"cpu": "10m"}, "health": {"longestRun": "1h"}}
        reviewed = {"requiresReview": True, "options": {"argv": ["true"]}}
        await backend.definitions.put(TENANT, read_definition({**fields, **limits, **reviewed}))
    await store.submit("done", a_task("a"), a_task("b", "a"), name="nightly")
    await store.complete("done", "a", {"rows": 3})
    await store.complete("done", "b", None)
    chunks = [
        OutputChunk(
            attempt=1, sequence=number, at=store.clock.now(), stream=Stream.STDOUT, data=data
        )
        for number, data in enumerate((b"hello\n", b"\xff\xfe", b"bye\n"), start=1)
    ]
    await backend.output.append(task_id("done", "a"), chunks)
    report = attempt_file_key(task_id("done", "a"), 1, "artifacts/report.csv")
    await backend.blobs.put(report, b"a,b\n1,2\n")
    store.clock.advance(SECOND)
    await store.submit("failed", a_task("x", maxAttempts=1), a_task("y", "x"))
    await store.fail("failed", "x")
    await store.submit("exited", a_task("only", maxAttempts=1))
    await store.fail("exited", "only")
    await store.submit("open", a_task("p"), a_task("q", "p"), budget={"usd": 5})
    await store.submit("running", a_task("r"), a_task("s", queue="mail"))
    await store.claim("running", "r")
    await store.submit("review", a_task("v", name="report", input={}))
    await store.complete("review", "v", "draft")
    await services.operator_commands.pause_queue("mail", by="bob", reason="maintenance")
    await services.health_check.check_tenant(TENANT)
    await backend.queue.send([OutgoingMessage(queue="odd", body="no task")])
    for _ in range(RECEIVE_LIMIT + 1):
        await backend.queue.receive(["odd"], limit=9, hidden_for=SECOND, wait=timedelta(0))
        store.clock.advance(SECOND)
    return store


@contextlib.asynccontextmanager
async def open_operations(kind: str, limits: WorkLimits = NO_LIMITS) -> AsyncIterator[Operations]:
    """The operations of a caller on a copy of the store: in this process, or over HTTP."""
    store = await full_store()
    if kind == "application":
        yield store.services.application(Caller(tenant=TENANT, name="ann", limits=limits))
        return
    if limits != NO_LIMITS:
        scopes = {*ApiScope} - {ApiScope.ADMIN}
        _, store.key = await store.services.api_keys.create(
            TENANT, name="ann", scopes=scopes, by="setup", limits=limits
        )
    app = create_app(store.services, ApiSettings(hosts=("*",)))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app),
        base_url=f"{URL}/v1/",
        headers={"x-api-key": store.key},
    ) as client:
        yield HttpClient(client, URL)


# Cases: each name begins with the operation that it is about -------------------------------------

DEAD = DeadLetterFilter(category=ErrorCategory.EXIT_CODE)
JOB_FILE = {
    "definitions": [{"name": "hi", "runner": "command", "options": {"argv": ["echo", "hi"]}}],
    "tasks": [{"taskId": "greet", "name": "hi"}],
}


async def all_of(stream: Awaitable[AsyncIterator[Any]]) -> list[Any]:
    return [item async for item in await stream]


async def listed(
    fetch: Callable[[str | None], Awaitable[Any]],
) -> list[Any]:
    """All pages of a listing."""
    pages = [await fetch(None)]
    while pages[-1].cursor is not None:
        pages.append(await fetch(pages[-1].cursor))
    return pages


async def dead_message_id(operations: Operations) -> str:
    letters = (await operations.list_dead_letters()).dead_letters
    return next(letter.id for letter in letters if letter.kind == "message")


async def discarded(operations: Operations) -> Any:
    letter_id = await dead_message_id(operations)
    return [
        await operations.get_dead_letter(letter_id),
        await operations.discard_dead_letter(letter_id),
        await operations.list_dead_letters(),
    ]


async def revoked(operations: Operations) -> Any:
    key = await operations.create_key("ci", ["submit", "read"])
    return [key, await operations.revoke_key(key.id), await operations.list_keys()]


async def twice(operations: Operations) -> Any:
    document = {"tasks": [a_task("t")]}
    return [
        await operations.submit(document, request_id="again"),
        await operations.submit(document, request_id="again"),
    ]


async def many_submissions(operations: Operations) -> Any:
    answers = await operations.submit_many(
        [
            Submission({"tasks": [a_task("n", "missing")]}, "wrong"),
            Submission({"tasks": [a_task("n")]}, "right"),
            Submission({"tasks": [a_task("other")]}, "done"),
        ]
    )
    assert [isinstance(answer, ERRORS) for answer in answers] == [True, False, True]
    return [str(answer) if isinstance(answer, ERRORS) else answer for answer in answers]


async def versions_of_a_definition(operations: Operations) -> Any:
    """Jobs that bring different definitions of one name: each uses its own."""
    (definition,) = JOB_FILE["definitions"]
    files = [
        {**JOB_FILE, "definitions": [{**definition, "retry": {"maxAttempts": attempts}}]}
        for attempts in (2, 3, 3, 2)
    ]
    answers = await operations.submit_many(
        [
            Submission({"tasks": [a_task("n")]}, "before"),
            *[Submission(file, f"file-{number}") for number, file in enumerate(files)],
        ]
    )
    tasks = [await operations.get_task(task_id(f"file-{n}", "greet")) for n in range(len(files))]
    assert [task.max_attempts for task in tasks] == [2, 3, 3, 2]
    return [answers, tasks]


CASES: dict[str, Case] = {
    "submit": lambda o: o.submit({"tasks": [a_task("n"), a_task("m", "n")]}, request_id="new"),
    "submit: without a request id": lambda o: o.submit({"tasks": [a_task("n")]}),
    "submit: the same request twice": twice,
    "submit: invalid": lambda o: o.submit({"tasks": [a_task("n", "missing"), {}]}),
    "submit: the request id of another job": lambda o: o.submit(
        {"tasks": [a_task("other")]}, request_id="done"
    ),
    "submit_file": lambda o: o.submit_file(JOB_FILE, request_id="file"),
    "submit_file: invalid": lambda o: o.submit_file({**JOB_FILE, "tasks": []}, request_id="file"),
    "submit_many": lambda o: o.submit_many(
        [
            Submission(JOB_FILE, "file"),
            Submission({"tasks": [a_task("n")]}, "new"),
            Submission(JOB_FILE, "file"),
        ]
    ),
    "submit_many: refused and accepted": many_submissions,
    "submit_many: versions of a definition": versions_of_a_definition,
    "add_tasks": lambda o: o.add_tasks(
        job_id("open"), {"tasks": [a_task("more", "p")]}, request_id="add-1"
    ),
    "add_tasks: to a completed job": lambda o: o.add_tasks(
        job_id("done"), {"tasks": [a_task("more")]}
    ),
    "find_ids": lambda o: o.find_ids(job_id("done")),
    "list_jobs": lambda o: o.list_jobs(),
    "list_jobs: in pages": lambda o: listed(lambda cursor: o.list_jobs(limit=2, cursor=cursor)),
    "list_jobs: by state and name": lambda o: o.list_jobs(state=JobState.COMPLETED, name="nightly"),
    "list_jobs: another listing's cursor": lambda o: o.list_jobs(cursor="odd"),
    "get_job": lambda o: o.get_job(job_id("failed")),
    "get_job: with one task": lambda o: o.get_job(job_id("exited")),
    "get_job: the first task": lambda o: o.get_job(job_id("done"), limit=1),
    "get_job: unknown": lambda o: o.get_job("job-unknown"),
    "list_tasks": lambda o: o.list_tasks(),
    "list_tasks: of a job": lambda o: listed(
        lambda cursor: o.list_tasks(job_id=job_id("done"), limit=1, cursor=cursor)
    ),
    "list_tasks: by state": lambda o: o.list_tasks(state=TaskState.FAILED),
    "get_task": lambda o: o.get_task(task_id("failed", "x")),
    "get_task: running": lambda o: o.get_task(task_id("running", "r")),
    "get_task: unknown": lambda o: o.get_task(task_id("failed", "unknown")),
    "task_statuses": lambda o: o.task_statuses(job_id("failed")),
    "get_result": lambda o: o.get_result(task_id("done", "a")),
    "get_result: of a waiting task": lambda o: o.get_result(task_id("open", "q")),
    "cancel_job": lambda o: o.cancel_job(job_id("open"), reason="not needed"),
    "cancel_job: with one task": lambda o: o.cancel_job(job_id("review")),
    "cancel_job: completed": lambda o: o.cancel_job(job_id("done")),
    "cancel_task": lambda o: o.cancel_task(task_id("open", "p"), reason="not needed"),
    "cancel_task: running": lambda o: o.cancel_task(task_id("running", "r")),
    "resume": lambda o: o.resume(job_id("failed")),
    "resume: some": lambda o: o.resume(job_id("failed"), ["x", "y", "unknown"]),
    "resume: nothing failed": lambda o: o.resume(job_id("open")),
    "approve": lambda o: o.approve(task_id("review", "v"), attempt=1),
    "approve: not in review": lambda o: o.approve(task_id("open", "p")),
    "revise": lambda o: o.revise(task_id("review", "v"), "shorter, please"),
    "why: a job": lambda o: o.why(job_id("failed")),
    "why: a task": lambda o: o.why(task_id("failed", "y")),
    "list_artifacts": lambda o: o.list_artifacts(task_id("done", "a")),
    "open_artifact": lambda o: o.open_artifact(
        task_id("done", "a"), "attempt-1/artifacts/report.csv"
    ),
    "open_artifact: unknown": lambda o: o.open_artifact(task_id("done", "a"), "attempt-1/none"),
    "read_output": lambda o: o.read_output(task_id("done", "a"), attempt=1),
    "read_output: after a chunk": lambda o: o.read_output(task_id("done", "a"), after="1.1"),
    "follow_task_output": lambda o: all_of(o.follow_task_output(task_id("done", "a"))),
    "follow_job_output": lambda o: all_of(o.follow_job_output(job_id("done"))),
    "follow_job_output: stored": lambda o: all_of(
        o.follow_job_output(job_id("open"), follow=False)
    ),
    "list_events": lambda o: o.list_events(limit=1000),
    "list_events: of a type": lambda o: o.list_events(event_type="Task Failed"),
    "list_job_events": lambda o: listed(
        lambda cursor: o.list_job_events(job_id("done"), limit=2, cursor=cursor or "")
    ),
    "list_job_events: without its tasks": lambda o: o.list_job_events(job_id("done"), tasks=False),
    "list_task_events": lambda o: o.list_task_events(task_id("failed", "x"), after=1),
    "follow_job_events": lambda o: all_of(o.follow_job_events(job_id("done"))),
    "follow_task_events": lambda o: all_of(o.follow_task_events(task_id("failed", "x"))),
    "task_health": lambda o: o.task_health(task_id("running", "r")),
    "task_health: of an ended task": lambda o: o.task_health(task_id("done", "a")),
    "last_health_check": lambda o: o.last_health_check(),
    "run_health_check": lambda o: o.run_health_check(),
    "check_ready": lambda o: o.check_ready(),
    "list_dead_letters": lambda o: o.list_dead_letters(),
    "list_dead_letters: in pages": lambda o: listed(
        lambda cursor: o.list_dead_letters(DEAD, limit=1, cursor=cursor)
    ),
    "count_dead_letters": lambda o: o.count_dead_letters(),
    "get_dead_letter": lambda o: o.get_dead_letter(task_id("failed", "x")),
    "get_dead_letter: unknown": lambda o: o.get_dead_letter("msg-unknown"),
    "replay_dead_letters": lambda o: o.replay_dead_letters(
        [task_id("failed", "x"), task_id("done", "a")]
    ),
    "replay_dead_letters: that match": lambda o: o.replay_dead_letters(DEAD),
    "discard_dead_letter": discarded,
    "discard_dead_letter: a task": lambda o: o.discard_dead_letter(task_id("failed", "x")),
    "list_definitions": lambda o: o.list_definitions(),
    "get_definition": lambda o: o.get_definition("report"),
    "get_definition: an old version": lambda o: o.get_definition("report", version=1),
    "get_definition: built in": lambda o: o.get_definition("command"),
    "list_definition_versions": lambda o: o.list_definition_versions("report"),
    "put_definition": lambda o: o.put_definition("new", {"runner": "command"}),
    "put_definition: invalid": lambda o: o.put_definition("new", {"runner": "odd"}),
    "put_definition: another name": lambda o: o.put_definition(
        "new", {"name": "other", "runner": "command"}
    ),
    "delete_definition": lambda o: o.delete_definition("report"),
    "delete_definition: unknown": lambda o: o.delete_definition("unknown"),
    "list_paused_queues": lambda o: o.list_paused_queues(),
    "pause_queue": lambda o: o.pause_queue("slow", reason="too much"),
    "resume_queue": lambda o: o.resume_queue("mail"),
    "resume_queue: not paused": lambda o: o.resume_queue("default"),
    "prune_jobs": lambda o: o.prune_jobs("1s"),
    "prune_jobs: only counted": lambda o: o.prune_jobs("0s", dry_run=True),
    "prune_jobs: no duration": lambda o: o.prune_jobs("soon"),
    "get_budget": lambda o: o.get_budget(),
    "get_budget: of a job": lambda o: o.get_budget(job_id("open")),
    "get_budget: of a task": lambda o: o.get_budget(task_id("open", "p")),
    "add_budget": lambda o: o.add_budget(Budget(usd=2.5), job_id("open"), request_id="more"),
    "add_budget: without a limit": lambda o: o.add_budget(Budget(usd=1), job_id("done")),
    "list_keys": lambda o: o.list_keys(),
    "create_key": lambda o: o.create_key("ci", ["submit", "read"]),
    "create_key: limited": lambda o: o.create_key(
        "ci", ["submit"], definitions=["report"], queues=["mail", "default"]
    ),
    "create_key: an administrator with limits": lambda o: o.create_key(
        "ci", ["admin"], definitions=["report"]
    ),
    "create_key: limited to nothing": lambda o: o.create_key("ci", ["submit"], queues=[]),
    "create_key: limited to no name": lambda o: o.create_key("ci", ["submit"], queues=["a b"]),
    "create_key: of another tenant": lambda o: o.create_key("ci", ["read"], tenant="globex"),
    "revoke_key": revoked,
    "revoke_key: unknown": lambda o: o.revoke_key("key-unknown"),
}
LIMITS = WorkLimits(definitions=frozenset({"report"}), queues=frozenset({"default"}))
NEW_REPORT = {"taskId": "n", "name": "report"}


async def one_of_a_batch(operations: Operations) -> Any:
    """Only the jobs that the caller may not submit are refused."""
    answers = await operations.submit_many(
        [
            Submission({"tasks": [NEW_REPORT]}, "first"),
            Submission({"tasks": [NEW_REPORT, a_task("m")]}, "mixed"),
            Submission(JOB_FILE, "file"),
            Submission({"tasks": [NEW_REPORT]}, "last"),
        ]
    )
    assert [isinstance(answer, NotAllowed) for answer in answers] == [False, True, True, False]
    return [str(answer) if isinstance(answer, ERRORS) else answer for answer in answers]


REFUSED: dict[str, Case] = {
    "submit": lambda o: o.submit({"tasks": [NEW_REPORT, a_task("m", "n")]}),
    "submit: another queue": lambda o: o.submit({"tasks": [{**NEW_REPORT, "queue": "mail"}]}),
    "submit_file": lambda o: o.submit_file(JOB_FILE),
    "submit_file: another report": lambda o: o.submit_file(
        {
            "definitions": [{"name": "report", "runner": "command", "options": {"argv": ["sh"]}}],
            "tasks": [NEW_REPORT],
        }
    ),
    "add_tasks": lambda o: o.add_tasks(job_id("open"), {"tasks": [a_task("more")]}),
    "add_tasks: another queue": lambda o: o.add_tasks(
        job_id("open"), {"tasks": [{**NEW_REPORT, "queue": "mail"}]}
    ),
    "resume": lambda o: o.resume(job_id("failed")),
    "resume: one task": lambda o: o.resume(job_id("failed"), ["x"]),
    "replay_dead_letters": lambda o: o.replay_dead_letters([task_id("failed", "x")]),
    "replay_dead_letters: that match": lambda o: o.replay_dead_letters(DEAD),
    "put_definition": lambda o: o.put_definition("report", {"runner": "command"}),
    "delete_definition": lambda o: o.delete_definition("report"),
}
"""What a caller with these limits may not do."""
ALLOWED: dict[str, Case] = {
    "submit": lambda o: o.submit({"tasks": [NEW_REPORT]}, request_id="new"),
    "submit_many": one_of_a_batch,
    "add_tasks": lambda o: o.add_tasks(job_id("open"), {"tasks": [NEW_REPORT]}, request_id="more"),
    "approve": lambda o: o.approve(task_id("review", "v")),
    "revise": lambda o: o.revise(task_id("review", "v"), "shorter"),
    "cancel_job": lambda o: o.cancel_job(job_id("open")),
    "get_job": lambda o: o.get_job(job_id("failed")),
    "resume: unknown": lambda o: o.resume(job_id("failed"), ["unknown"]),
    "add_budget": lambda o: o.add_budget(Budget(usd=2.5), job_id("open"), request_id="more"),
}
ERRORS = (AlreadyExists, CommandRefused, NotFound, InvalidJob, NotAllowed, UsageError)


async def plain(answer: Any) -> Any:
    """An answer as plain values, with the type of each document."""
    if isinstance(answer, ApiDocument):
        return type(answer).__name__, to_dict(answer)
    if isinstance(answer, list):
        return [await plain(item) for item in answer]
    if isinstance(answer, ArtifactContent):
        return answer.size, await answer.read()
    if is_dataclass(answer):
        return [await plain(getattr(answer, name)) for name in ("kind", "id", "data")]
    return answer


async def answer_of(kind: str, case: Case, limits: WorkLimits = NO_LIMITS) -> Any:
    async with asyncio.timeout(TIMEOUT_S), open_operations(kind, limits) as operations:
        try:
            return await plain(await case(operations))
        except ERRORS as error:
            kinds = [type_.__name__ for type_ in ERRORS if isinstance(error, type_)]
            return kinds[0], str(error).removeprefix(f"{URL}: ")


def operation_names() -> list[str]:
    methods = inspect.getmembers(Application, inspect.isfunction)
    return [name for name, _ in methods if not name.startswith("_")]


# Tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["add", "tasks", "cancel"])
def test_commands_that_differed_between_folder_and_server_print_the_same_fields(
    cli: Cli, inside: Callable[..., CommandResult], at: At, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"tasks": [a_task("a"), a_task("b", "a")]}))
    folder = tmp_path / "data"
    submitted = inside("submit", str(file), "-o", "json", "--data-dir", str(folder))
    job = json.loads(submitted.out)["jobId"]
    file.write_text(json.dumps({"tasks": [a_task("c")]}))
    arguments = {"add": [job, str(file)], "tasks": ["--job", job], "cancel": [job]}[command]

    document = json.loads(inside(command, *arguments, "-o", "json", *at(folder)).out)

    if command == "add":
        assert document["status"] == "running"
    elif command == "tasks":
        waiting, pending = sorted(task["lastEvent"] is not None for task in document["tasks"])
        assert (waiting, pending) == (False, True)
    else:
        assert (document["status"], document["exitCode"]) == ("cancelled", 1)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_answers_the_same_from_the_application_and_over_http(name: str) -> None:
    direct = asyncio.run(answer_of("application", CASES[name]))
    remote = asyncio.run(answer_of("http", CASES[name]))

    assert remote == direct


@pytest.mark.parametrize("name", REFUSED)
def test_a_limited_key_does_not_start_other_tasks(name: str) -> None:
    direct = asyncio.run(answer_of("application", REFUSED[name], LIMITS))
    remote = asyncio.run(answer_of("http", REFUSED[name], LIMITS))

    assert remote == direct
    kind, text = direct
    assert kind == "NotAllowed"
    assert "this key may only start tasks of the definitions report in the queues default" in text


@pytest.mark.parametrize("name", ["approve", "revise"])
def test_a_key_that_is_limited_to_other_definitions_does_not_review(name: str) -> None:
    limits = WorkLimits(definitions=frozenset({"other"}))
    direct = asyncio.run(answer_of("application", ALLOWED[name], limits))

    assert direct == asyncio.run(answer_of("http", ALLOWED[name], limits))
    assert direct[0] == "NotAllowed"


@pytest.mark.parametrize("name", ALLOWED)
def test_a_limited_key_does_the_rest_as_any_other(name: str) -> None:
    direct = asyncio.run(answer_of("application", ALLOWED[name], LIMITS))

    assert direct == asyncio.run(answer_of("http", ALLOWED[name], LIMITS))
    if name != "submit_many":
        assert direct == asyncio.run(answer_of("application", ALLOWED[name]))


def test_built_in_definitions_can_be_switched_off_for_a_caller() -> None:
    async def run() -> None:
        caller = Caller(tenant=TENANT, name="ann", limits=WorkLimits(builtins=False))
        store = await full_store()
        operations = store.services.application(caller)
        python = {"taskId": "m", "name": "python", "input": {"function": "os:getpid"}}
        for refused in (
            operations.submit({"tasks": [a_task("n"), NEW_REPORT | {"taskId": "r"}, python]}),
            operations.submit_file({**JOB_FILE, "tasks": [a_task("n"), NEW_REPORT, python]}),
            operations.add_tasks(job_id("open"), {"tasks": [a_task("n"), NEW_REPORT, python]}),
        ):
            with pytest.raises(InvalidJob, match=r"api\.builtin_definitions") as error:
                await refused
            paths = [problem.path for problem in error.value.problems]
            assert {"tasks[0].name", "tasks[2].name"} <= {*paths}
        assert (await operations.submit_file(JOB_FILE)).created
        assert await operations.resume(job_id("failed"))  # it was accepted before
        await store.services.backend.definitions.put(
            TENANT, read_definition({"name": "command", "runner": "command", "options": HI})
        )
        assert (await operations.submit({"tasks": [{"taskId": "n", "name": "command"}]})).created

    asyncio.run(run())


def test_what_a_definition_does_not_let_an_input_set_is_refused_with_every_problem() -> None:
    """Also together with other problems, and in a job file with the definition."""

    async def run() -> None:
        store = await full_store()
        operations = store.services.application(Caller(tenant=TENANT, name="ann"))
        await operations.put_definition(
            "feed",
            {"runner": "command", "options": HI, "overridable": ["env.REGION"]},
        )
        ids = (await operations.find_ids("job-", limit=100)).ids
        sets = {"argv": ["sh"], "env": {"REGION": "north", "PATH": "/tmp"}, "rows": 3}
        allowed = {"env": {"REGION": "north"}, "rows": 3}
        tasks = [
            {"taskId": "a", "name": "feed", "input": sets},
            {"taskId": "b", "name": "feed", "input": allowed},
            {"taskId": "c", "name": "report", "input": {"cwd": "/"}},
        ]
        expected = ["tasks[0].input.argv", "tasks[0].input.env.PATH", "tasks[2].input.cwd"]
        for refused, more in (
            (operations.submit({"tasks": tasks}), []),
            (operations.add_tasks(job_id("open"), {"tasks": tasks}), []),
            (operations.submit({"tasks": [*tasks, a_task("a")]}), ["tasks[3].taskId"]),
            (operations.submit({"tasks": [*tasks, NEW_REPORT | {"name": "x"}]}), ["tasks[3].name"]),
        ):
            with pytest.raises(InvalidJob) as error:
                await refused
            assert {item.path for item in error.value.problems} == {*expected, *more}
        message = {item.path: item.message for item in error.value.problems}[expected[0]]
        assert message == (
            "the definition 'feed' does not let the input set it: leave it out, or add 'argv' to"
            " the definition's `overridable`"
        )
        own = {"name": "feed", "runner": "command", "options": HI, "overridable": ["argv"]}
        file = {"definitions": [own], "tasks": tasks[:2]}
        with pytest.raises(InvalidJob) as error:
            await operations.submit_file(file)
        paths = [item.path for item in error.value.problems]
        assert paths == [f"tasks[{n}].input.env.{name}" for n, name in ENVIRONMENTS]
        assert (await operations.get_definition("feed")).version == 1
        assert (await operations.find_ids("job-", limit=100)).ids == ids
        assert (await operations.submit({"tasks": [tasks[1]]})).created

    asyncio.run(run())


HI = {"argv": ["echo", "hi"]}
ENVIRONMENTS = ((0, "REGION"), (0, "PATH"), (1, "REGION"))


def test_every_operation_has_a_case() -> None:
    covered = {name.partition(":")[0] for name in CASES}

    assert covered == set(operation_names())


@pytest.mark.parametrize("name", operation_names())
def test_the_http_client_has_every_operation_with_the_same_signature(name: str) -> None:
    direct = inspect.signature(getattr(Application, name))
    remote = inspect.signature(getattr(HttpClient, name))

    assert [str(parameter) for parameter in remote.parameters.values()] == [
        str(parameter) for parameter in direct.parameters.values()
    ]
    assert remote.return_annotation == direct.return_annotation


def test_operations_of_one_tenant_do_not_find_jobs_of_another() -> None:
    async def find() -> None:
        store = await full_store()
        other = store.services.application(Caller(tenant="other", name="eve"))
        for refused in (
            other.get_job(job_id("done")),
            other.get_task(task_id("done", "a")),
            other.list_tasks(job_id=job_id("done")),
            other.task_statuses(job_id("done")),
            other.get_result(task_id("done", "a")),
            other.cancel_job(job_id("open")),
            other.cancel_task(task_id("open", "p")),
            other.resume(job_id("failed")),
            other.approve(task_id("review", "v")),
            other.revise(task_id("review", "v"), "no"),
            other.why(job_id("failed")),
            other.add_tasks(job_id("open"), {"tasks": [a_task("z")]}),
            other.list_artifacts(task_id("done", "a")),
            other.open_artifact(task_id("done", "a"), "attempt-1/artifacts/report.csv"),
            other.read_output(task_id("done", "a")),
            other.follow_task_output(task_id("done", "a")),
            other.follow_job_output(job_id("done")),
            other.list_job_events(job_id("done")),
            other.list_task_events(task_id("done", "a")),
            other.follow_job_events(job_id("done")),
            other.follow_task_events(task_id("done", "a")),
            other.task_health(task_id("running", "r")),
            other.get_budget(job_id("open")),
            other.add_budget(Budget(usd=1), job_id("open")),
            other.get_dead_letter(task_id("failed", "x")),
            other.get_definition("report"),
        ):
            with pytest.raises(NotFound):
                await refused
        assert (await other.list_jobs()).jobs == []
        assert (await other.find_ids("job-")).ids == []
        assert (await other.list_dead_letters(DEAD)).count == 0

    asyncio.run(find())
