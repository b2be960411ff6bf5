"""Operations of the application that read rows, events, files and definitions from ports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from longshore.core.api_keys import NO_LIMITS, WorkLimits
from longshore.core.documents import EncodedJson
from longshore.core.events.event import EventContext
from longshore.core.health import HealthReport
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import NotFound
from longshore.services.app import Application, Caller
from longshore.services.health import ENTITY_ID
from longshore.services.resilience import PROBE_INTERVAL, Readiness
from longshore.testing.fake_runner import Script, fails, prints, succeeds
from tests.errors_everywhere.harness import LARGE, ErrorHarness
from tests.unit.services.harness import APP, TENANT, job_id, make_task, task_id

_DEFINITION = {"name": "own", "runner": "command", "options": {"argv": ["true"]}}
_CHANGED = {**_DEFINITION, "options": {"argv": ["false"]}}
_USED = ("backend", "transitions", "documents", "producer", "operator_commands")


async def operations(harness: ErrorHarness) -> None:
    """A caller reads everything about two jobs, resumes one, and changes definitions."""
    app = _application(harness)
    harness.children.set_scripts(
        "a", Script(reports=[prints("one\n")], files={"artifacts/report": "done"})
    )
    harness.children.set_scripts("doomed", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    harness.children.set_scripts("b", Script(ending=succeeds(LARGE)))
    await harness.submit("many", make_task("a"), make_task("b"))
    await harness.submit("doomed", make_task("doomed"))
    await harness.wait_for_jobs("many")
    await _read_jobs(harness, app)
    await _read_task(harness, app)

    async def failed() -> bool:
        return (await harness.state_of("doomed", "doomed")).terminal

    await harness.wait_until(failed, "the task does not fail")
    limited = _application(harness, WorkLimits(queues=frozenset({"default"})))
    await harness.call_with_retry(lambda: limited.resume(job_id("doomed")))
    await harness.wait_for_jobs("doomed")
    await _change_definitions(harness, app)
    await _store_encoded(harness)
    # Those of a store that was restored; here no task runs any more.
    assert await harness.call_until_answered(harness.faulty.sweeper.end_all_leases) == 0


async def _read_jobs(harness: ErrorHarness, app: Application) -> None:
    ask, job = harness.call_until_answered, job_id("many")
    await ask(lambda: app.find_ids("job-"))
    await ask(lambda: app.list_jobs())
    await ask(lambda: app.get_job(job))
    await ask(lambda: app.get_job(job, limit=1))
    await ask(lambda: app.list_tasks(job_id=job))
    await ask(lambda: app.task_statuses(job))
    await ask(lambda: _check_ready(app))
    await ask(lambda: app.list_events())
    await ask(lambda: _collect_output(app, job))
    await ask(lambda: _last_health_check(app))
    await _read_divided_health_check(harness, app)


async def _read_task(harness: ErrorHarness, app: Application) -> None:
    ask, task = harness.call_until_answered, task_id("a", "many")
    await ask(lambda: app.get_task(task))
    await ask(lambda: app.list_paused_queues())
    await ask(lambda: app.read_output(task))
    await ask(lambda: app.list_task_events(task))
    stored = await ask(lambda: app.list_artifacts(task))
    # An error may have cost the task its file.
    for artifact in stored.artifacts:
        await ask(lambda name=artifact.name: _read_artifact(app, task, name))

    result = "attempt-1/artifacts/task-result.json"
    if await harness.state_of("many", "b") is TaskState.COMPLETED:
        # An error may have cost the task its first attempt.
        with contextlib.suppress(NotFound):
            await ask(lambda: _read_artifact(app, task_id("b", "many"), result))


async def _store_encoded(harness: ErrorHarness) -> None:
    """Long JSON of a child is stored as it is, alone and as a field."""
    documents, long = harness.faulty.documents, EncodedJson(f'"{LARGE}"'.encode())
    stored = await harness.call_until_answered(lambda: documents.store(long, "encoded"))
    assert await harness.clean.documents.load(stored) == LARGE
    await harness.call_until_answered(lambda: documents.store_key("field", {"long": long}))
    assert await harness.clean.documents.load_key("field") == {"long": LARGE}


async def _change_definitions(harness: ErrorHarness, app: Application) -> None:
    ask = harness.call_until_answered
    job = {"tasks": [{"taskId": "own", "name": "own"}], "definitions": [_DEFINITION]}
    await ask(lambda: app.submit_file(job, request_id="own"))
    await harness.wait_for_jobs("own")
    await ask(lambda: app.put_definition("own", _CHANGED))
    await ask(lambda: app.list_definitions())
    await ask(lambda: app.get_definition("own"))
    await ask(lambda: app.list_definition_versions("own"))
    await harness.call_with_retry(lambda: app.list_definition_versions("own", after=9))
    await harness.call_with_retry(lambda: app.delete_definition("own"))


async def _collect_output(app: Application, job: str) -> list[Any]:
    return await _collect(await app.follow_job_output(job, follow=False))


async def _read_artifact(app: Application, task: str, name: str) -> bytes:
    return await (await app.open_artifact(task, name)).read()


async def _check_ready(app: Application) -> None:
    try:
        await app.check_ready()
    except Exception:
        await asyncio.sleep(PROBE_INTERVAL.total_seconds())  # until then it is the answer
        raise


async def _last_health_check(app: Application) -> None:
    try:
        await app.last_health_check()
    except NotFound:
        return  # no check was made in this run


async def _read_divided_health_check(harness: ErrorHarness, app: Application) -> None:
    now = harness.raw.clock.now()
    check = HealthReport(tenant=TENANT, at=now, tasks=()).event()
    for part in (1, 2):
        await harness.raw.events.append(
            tenant=TENANT,
            app=APP,
            entity_id=ENTITY_ID,
            body=replace(check, part=part, parts=2),
            context=EventContext(origin="health-check"),
            now=now,
        )
    document = await harness.call_until_answered(app.last_health_check)
    assert document.tasks == []


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _application(harness: ErrorHarness, limits: WorkLimits = NO_LIMITS) -> Application:
    used: Any = {name: getattr(harness.faulty, name) for name in _USED}
    services = SimpleNamespace(
        **used, readiness=Readiness(used["backend"]), environment="test", task_secrets=None
    )
    return Application(services, Caller(tenant=TENANT, name="ann", limits=limits))
