"""Scenarios of jobs that make all calls of the services, while calls fail."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from longshore.core.api_keys import ApiScope, KeyRecord
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import AlreadyExists
from longshore.ports.backend import Backend
from longshore.ports.output import OUTPUT_START
from longshore.ports.task_queue import OutgoingMessage
from longshore.testing.fake_runner import Script, fails, prints, succeeds
from tests.aws.deploy_scenarios import DEPLOY_SCENARIOS
from tests.aws.port_scenarios import PORT_SCENARIOS
from tests.aws.scenario_harness import AwsFaultHarness, Scenario
from tests.unit.services.harness import NO_WAIT, TENANT, make_task, task_id
from tests.unit.services.samples import LARGE


async def a_dag_with_a_retry_and_large_documents(harness: AwsFaultHarness) -> None:
    runner = harness.services.runner
    runner.set_scripts("a", Script(reports=[prints("hello\n")], ending=succeeds({"large": LARGE})))
    runner.set_scripts(
        "b", Script(ending=fails(ErrorCategory.NETWORK)), Script(reports=[prints("b\n")])
    )
    async with harness.services.running_worker():
        job = await harness.submit(
            make_task("a", input={"argv": ["echo", LARGE]}),
            make_task("b", "a"),
            make_task("c", "a"),
            make_task("d", "b", "c"),
        )
        await harness.until_job(job, JobState.COMPLETED)


async def a_failure_a_resume_a_cancellation_and_a_review(harness: AwsFaultHarness) -> None:
    backend: Backend = harness.services.backend
    own = Definition(
        name=harness.request_id(),
        runner=RunnerKind.COMMAND,
        overridable=("argv",),
        requires_review=True,
    )
    await harness.retry(lambda: backend.definitions.put(TENANT, own))
    runner = harness.services.runner
    runner.set_scripts("a", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    reviewing = harness.services.operator_commands
    async with harness.services.running_worker():
        job = await harness.submit(
            make_task("a"), make_task("b", "a"), make_task("r", name=own.name)
        )
        await harness.until_task("r", TaskState.IN_REVIEW)
        await harness.until_task("a", TaskState.FAILED)
        name = harness.request_id()
        await harness.run_until(lambda: _is_listed_as_failed(harness, task_id("a", name)))
        task_ids = [task_id("a", name)]
        resumed = await harness.retry(
            lambda: harness.services.operator_commands.resume(job, task_ids, by="ann")
        )
        assert resumed.refused == {}
        seen = await harness.retry(lambda: backend.ledger.get_task(task_id("r", name)))
        assert seen is not None
        await harness.retry(
            lambda: reviewing.approve(TENANT, seen.id, by="ann", attempt=seen.attempt)
        )
        await harness.until_job(job, JobState.COMPLETED)
        first, *others = (letter * 125 for letter in "abcdefghi")  # the graph becomes a blob
        many = [make_task(first, delay=86_400), *(make_task(item, first) for item in others)]
        other = await harness.submit(*many, request="-off")
        await harness.retry(lambda: harness.services.operator_commands.cancel_job(other, by="bob"))
        await harness.until_job(other, JobState.CANCELLED)
    await harness.settle()

    async def is_in_order() -> bool:
        return not await harness.audit_tables(harness.aws)

    await harness.run_until(is_in_order)


async def _is_listed_as_failed(harness: AwsFaultHarness, failed: str) -> bool:
    ledger = harness.services.backend.ledger
    listed = [item.task_id for item in await ledger.failed_tasks(TENANT, limit=200)]
    return failed in listed and TENANT in await ledger.failed_tenants(limit=10)


async def a_message_that_cannot_be_processed(harness: AwsFaultHarness) -> None:
    job = await harness.submit(make_task("a"))
    queue, at_once = harness.services.backend.queue, timedelta(0)

    async def wears_out() -> bool:
        row = await harness.services.backend.ledger.get_task(task_id("a", harness.request_id()))
        if row is not None and row.state is TaskState.FAILED:
            return True
        for _ in range(RECEIVE_LIMIT + 1):
            if not await queue.receive(["default"], limit=10, hidden_for=at_once, wait=at_once):
                break
        return False

    await harness.run_until(wears_out)
    async with harness.services.running_worker():
        letters = harness.services.dead_letters
        await harness.retry(lambda: letters.replay(TENANT, DeadLetterFilter(), by="ann"))
        await harness.until_job(job, JobState.COMPLETED)


async def all_other_operations(harness: AwsFaultHarness) -> None:
    """Operations that no worker uses: each is retried until it returns the right result."""
    backend, name, now = (
        harness.services.backend,
        harness.request_id(),
        harness.services.clock.now(),
    )
    # First, so that in every run it is this call that looks up the queues.
    assert (await harness.retry(lambda: backend.queue.depth("default"))).dead_letters >= 0
    await _check_blobs(harness, backend, name)
    await _check_api_keys(harness, backend, name)
    await harness.retry(lambda: backend.queue_controls.pause(name, by="ann", reason=name, now=now))
    until = now + timedelta(hours=1)
    await harness.retry(
        lambda: backend.queue_controls.hold(name, until=until, by="worker-1", reason=name, now=now)
    )
    assert [item.name for item in await harness.retry(backend.queue_controls.list_pauses)].count(
        name
    ) == 2
    await harness.retry(lambda: backend.queue_controls.resume(name))
    assert name not in [
        item.name for item in await harness.retry(backend.queue_controls.list_pauses)
    ]
    own = Definition(name=name, runner=RunnerKind.COMMAND, overridable=("argv",))
    await harness.retry(lambda: backend.definitions.put(TENANT, own))
    assert name in [
        item.name for item in await harness.retry(lambda: backend.definitions.list(TENANT))
    ]
    harness.services.runner.set_scripts("a", Script(reports=[prints("on\n")], ending=None))
    await harness.retry(
        lambda: backend.queue.send([OutgoingMessage(queue="default", body="nonsense")])
    )
    async with harness.services.running_worker():
        job = await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.until_task("a", TaskState.PROCESSING)
        await harness.run_until(
            lambda: backend.output.wait_for_output(
                task_id("a", name), after=OUTPUT_START, timeout=NO_WAIT
            )
        )
        assert len(await harness.retry(lambda: backend.output.read(task_id("a", name)))) == 1
        await harness.retry(lambda: harness.services.operator_commands.cancel_job(job, by="ann"))
        await harness.until_job(job, JobState.CANCELLED)
    await _check_listings(harness, backend, job)
    await harness.retry(lambda: backend.definitions.delete(TENANT, name))


async def _check_blobs(harness: AwsFaultHarness, backend: Backend, name: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 6 * 1024 * 1024

    await harness.retry(lambda: backend.blobs.put(f"{name}/large", pieces()))
    assert await harness.retry(lambda: backend.blobs.size(f"{name}/large")) == 18 * 1024 * 1024
    assert await harness.retry(lambda: backend.blobs.list_keys(f"{name}/")) == [f"{name}/large"]
    await harness.retry(lambda: backend.blobs.delete(f"{name}/large"))
    assert await harness.retry(lambda: backend.blobs.size(f"{name}/large")) is None


async def _check_api_keys(harness: AwsFaultHarness, backend: Backend, name: str) -> None:
    record = KeyRecord(
        id=f"k-{name}",
        tenant=TENANT,
        name=name,
        hash=name,
        scopes=frozenset({ApiScope.READ}),
        created_at=harness.services.clock.now(),
    )

    async def add() -> None:
        try:
            await backend.keys.add(record)
        except AlreadyExists:  # by an earlier attempt whose response was lost
            assert await backend.keys.find(name) == record

    await harness.retry(add)
    assert await harness.retry(lambda: backend.keys.find(name)) == record
    assert record in await harness.retry(lambda: backend.keys.list(TENANT))
    assert TENANT in await harness.retry(backend.keys.tenants)
    now = harness.services.clock.now()
    await harness.retry(lambda: backend.keys.revoke(TENANT, record.id, now=now))
    result = await harness.retry(lambda: backend.keys.find(name))
    assert result is not None
    assert result.revoked_at is not None


async def _check_listings(harness: AwsFaultHarness, backend: Backend, job: str) -> None:
    ledger, entity = backend.ledger, f"JOB#{job}"
    assert job in [
        row.id for row in (await harness.retry(lambda: ledger.list_jobs(TENANT, limit=200))).items
    ]
    of_job = await harness.retry(lambda: ledger.list_tasks(TENANT, job_id=job))
    assert len(of_job.items) == 2
    assert await harness.retry(lambda: ledger.list_tasks(TENANT, limit=5))
    assert await harness.retry(lambda: ledger.find_ids(TENANT, job))

    async def all_recorded() -> bool:
        page = await backend.events.query(TENANT, entity=entity, limit=50)
        all_of_it = await backend.events.query(TENANT, job_id=job, limit=50)
        history = await backend.events.history(TENANT, entity)
        latest = await backend.events.latest(TENANT, entity)
        whole = len(all_of_it.items) > len(page.items) == len(history) >= 2
        return whole and latest == history[-1]

    await harness.run_until(all_recorded)


SCENARIOS: Sequence[Scenario] = (
    a_dag_with_a_retry_and_large_documents,
    a_failure_a_resume_a_cancellation_and_a_review,
    a_message_that_cannot_be_processed,
    all_other_operations,
    *PORT_SCENARIOS,
    *DEPLOY_SCENARIOS,
)
