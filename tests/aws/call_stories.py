"""Stories of jobs that make the calls which services make, told under trouble."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from longshore.core.definition import Definition, RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.core.keys import KeyRecord, Scope
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.states import JobState, TaskState
from longshore.errors import AlreadyExists
from longshore.ports.backend import Backend
from longshore.ports.output import START
from longshore.ports.queue import Outgoing
from longshore.services.reviewing import Reviewing
from longshore.testing.runner import Script, fails, prints, succeeds
from tests.aws.call_house_stories import HOUSE_STORIES
from tests.aws.call_port_stories import PORT_STORIES
from tests.aws.call_theatre import Story, Theatre
from tests.unit.services.samples import LARGE
from tests.unit.services.stage import NO_WAIT, TENANT, a_task, task_id


async def a_dag_with_a_retry_and_large_documents(told: Theatre) -> None:
    runner = told.stage.runner
    runner.plays("a", Script(says=[prints("hello\n")], ending=succeeds({"large": LARGE})))
    runner.plays("b", Script(ending=fails(ErrorCategory.NETWORK)), Script(says=[prints("b\n")]))
    async with told.stage.working():
        job = await told.submits(
            a_task("a", input={"argv": ["echo", LARGE]}),
            a_task("b", "a"),
            a_task("c", "a"),
            a_task("d", "b", "c"),
        )
        await told.until(job, JobState.COMPLETED)


async def a_failure_a_resume_a_cancellation_and_a_review(told: Theatre) -> None:
    backend: Backend = told.stage.backend
    own = Definition(name=told.request(), runner=RunnerKind.COMMAND, requires_review=True)
    await told.asks(lambda: backend.definitions.put(TENANT, own))
    runner = told.stage.runner
    runner.plays("a", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    reviewing = Reviewing(
        backend=backend, transitions=told.stage.transitions, dispatcher=told.stage.dispatcher
    )
    async with told.stage.working():
        job = await told.submits(a_task("a"), a_task("b", "a"), a_task("r", name=own.name))
        await told.until_task("r", TaskState.IN_REVIEW)
        await told.until_task("a", TaskState.FAILED)
        name = told.request()
        await told.goes_on(lambda: _is_listed_as_failed(told, task_id("a", name)))
        wanted = [task_id("a", name)]
        resumed = await told.asks(lambda: told.stage.resuming.resume(job, wanted, by="ann"))
        assert resumed.refused == {}
        seen = await told.asks(lambda: backend.ledger.task(task_id("r", name)))
        assert seen is not None
        await told.asks(lambda: reviewing.approve(TENANT, seen.id, by="ann", attempt=seen.attempt))
        await told.until(job, JobState.COMPLETED)
        first, *others = (letter * 125 for letter in "abcdefghi")  # the graph becomes a blob
        many = [a_task(first, delay=86_400), *(a_task(one, first) for one in others)]
        other = await told.submits(*many, request="-off")
        await told.asks(lambda: told.stage.cancelling.cancel(other, by="bob"))
        await told.until(other, JobState.CANCELLED)
    await told.comes_to_rest()

    async def is_in_order() -> bool:
        return not await told.audited(told.aws)

    await told.goes_on(is_in_order)


async def _is_listed_as_failed(told: Theatre, failed: str) -> bool:
    ledger = told.stage.backend.ledger
    listed = [one.task_id for one in await ledger.failed(TENANT, limit=200)]
    return failed in listed and TENANT in await ledger.failed_tenants(limit=10)


async def a_message_that_nobody_could_deal_with(told: Theatre) -> None:
    job = await told.submits(a_task("a"))
    queue, at_once = told.stage.backend.queue, timedelta(0)

    async def wears_out() -> bool:
        row = await told.stage.backend.ledger.task(task_id("a", told.request()))
        if row is not None and row.state is TaskState.FAILED:
            return True
        for _ in range(RECEIVE_LIMIT + 1):
            if not await queue.receive(["default"], limit=10, hidden_for=at_once, wait=at_once):
                break
        return False

    await told.goes_on(wears_out)
    async with told.stage.working():
        letters = told.stage.dead_letters
        await told.asks(lambda: letters.replay_matching(TENANT, by="ann"))
        await told.until(job, JobState.COMPLETED)


async def whatever_else_is_asked_at_a_desk(told: Theatre) -> None:
    """What no worker needs: each is asked until it is answered, and the answers are right."""
    backend, name, now = told.stage.backend, told.request(), told.stage.clock.now()
    await _blobs_of(told, backend, name)
    await _keys_of(told, backend, name)
    await told.asks(lambda: backend.queues.pause(name, by="ann", reason=name, now=now))
    until = now + timedelta(hours=1)
    await told.asks(
        lambda: backend.queues.hold(name, until=until, by="worker-1", reason=name, now=now)
    )
    assert [one.name for one in await told.asks(backend.queues.paused)].count(name) == 2
    await told.asks(lambda: backend.queues.resume(name))
    assert name not in [one.name for one in await told.asks(backend.queues.paused)]
    own = Definition(name=name, runner=RunnerKind.COMMAND)
    await told.asks(lambda: backend.definitions.put(TENANT, own))
    assert name in [one.name for one in await told.asks(lambda: backend.definitions.list(TENANT))]
    told.stage.runner.plays("a", Script(says=[prints("on\n")], ending=None))
    await told.asks(lambda: backend.queue.send([Outgoing(queue="default", body="nonsense")]))
    async with told.stage.working():
        job = await told.submits(a_task("a"), a_task("b", "a"))
        await told.until_task("a", TaskState.PROCESSING)
        await told.goes_on(
            lambda: backend.output.wait(task_id("a", name), after=START, wait=NO_WAIT)
        )
        assert len(await told.asks(lambda: backend.output.read(task_id("a", name)))) == 1
        await told.asks(lambda: told.stage.cancelling.cancel(job, by="ann"))
        await told.until(job, JobState.CANCELLED)
    await _listings_of(told, backend, job)
    await told.asks(lambda: backend.definitions.delete(TENANT, name))


async def _blobs_of(told: Theatre, backend: Backend, name: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 6 * 1024 * 1024

    await told.asks(lambda: backend.blobs.put(f"{name}/large", pieces()))
    assert await told.asks(lambda: backend.blobs.size(f"{name}/large")) == 18 * 1024 * 1024
    assert await told.asks(lambda: backend.blobs.keys(f"{name}/")) == [f"{name}/large"]
    await told.asks(lambda: backend.blobs.delete(f"{name}/large"))
    assert await told.asks(lambda: backend.blobs.size(f"{name}/large")) is None


async def _keys_of(told: Theatre, backend: Backend, name: str) -> None:
    record = KeyRecord(
        id=f"k-{name}",
        tenant=TENANT,
        name=name,
        hash=name,
        scopes=frozenset({Scope.READ}),
        created_at=told.stage.clock.now(),
    )

    async def add() -> None:
        try:
            await backend.keys.add(record)
        except AlreadyExists:  # by an earlier try that was not answered, and by nobody else
            assert await backend.keys.find(name) == record

    await told.asks(add)
    assert await told.asks(lambda: backend.keys.find(name)) == record
    assert record in await told.asks(lambda: backend.keys.list(TENANT))
    now = told.stage.clock.now()
    await told.asks(lambda: backend.keys.revoke(TENANT, record.id, now=now))
    found = await told.asks(lambda: backend.keys.find(name))
    assert found is not None
    assert found.revoked_at is not None


async def _listings_of(told: Theatre, backend: Backend, job: str) -> None:
    ledger, entity = backend.ledger, f"JOB#{job}"
    assert job in [
        row.id for row in (await told.asks(lambda: ledger.list_jobs(TENANT, limit=200))).items
    ]
    of_job = await told.asks(lambda: ledger.list_tasks(TENANT, job_id=job))
    assert len(of_job.items) == 2
    assert await told.asks(lambda: ledger.list_tasks(TENANT, limit=5))
    assert await told.asks(lambda: ledger.find(TENANT, job))
    assert (await told.asks(lambda: backend.queue.depth("default"))).dead >= 0

    async def told_of() -> bool:
        page = await backend.events.query(TENANT, entity=entity, limit=50)
        all_of_it = await backend.events.query(TENANT, job_id=job, limit=50)
        history = await backend.events.history(TENANT, entity)
        latest = await backend.events.latest(TENANT, entity)
        whole = len(all_of_it.items) > len(page.items) == len(history) >= 2
        return whole and latest == history[-1]

    await told.goes_on(told_of)


STORIES: Sequence[Story] = (
    a_dag_with_a_retry_and_large_documents,
    a_failure_a_resume_a_cancellation_and_a_review,
    a_message_that_nobody_could_deal_with,
    whatever_else_is_asked_at_a_desk,
    *PORT_STORIES,
    *HOUSE_STORIES,
)
