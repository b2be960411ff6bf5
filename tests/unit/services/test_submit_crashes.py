"""A submit that dies, meets others or loses its store is finished or never was."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.tasks.states import JobState
from longshore.errors import BackendUnavailable
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    IN_MEMORY,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at
from tests.unit.services.samples import LARGE_DIAMOND as DIAMOND

TWO_MINUTES = timedelta(minutes=2)


async def check_job_can_finish(harness: ServiceHarness) -> None:
    """The job can be run to its end after any earlier crash."""
    await harness.advance(TWO_MINUTES)
    await harness.sweeper.sweep()
    states = await harness.states()
    job = await harness.job()

    assert job.intents == ()
    assert len(states) == job.total == len(DIAMOND)
    assert await harness.messages() == [f'{{"requestId":"{task_id("a")}"}}']
    await harness.finish()
    assert (await harness.job()).state is JobState.COMPLETED
    assert (await harness.job_event_types()) == ["Job Created", "Job Completed"]
    for key in states:
        assert (await harness.event_types(key)).count("Task Pending") == 1
    row = await harness.task("c")
    assert await harness.documents.load(row.spec.input) == DIAMOND[2]["input"]


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_submit_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = []
    for at in range(1, 100):
        async with open_backend(kind, tmp_path) as backend:
            dying = crash_at(backend, at, after_call=after_the_call)
            harness = ServiceHarness(backend)
            try:
                await ServiceHarness(dying).submit(*DIAMOND)
            except Crash:
                outcomes.append("crashed")
            else:
                outcomes.append("passed")

            if await backend.ledger.get_job(job_id()) is None:
                assert await harness.states() == {}
                assert await harness.messages() == []
                outcomes[-1] = "never was"
                assert (await harness.submit(*DIAMOND)).created
            await check_job_can_finish(harness)
        if outcomes[-1] == "passed":
            break

    assert outcomes[-1] == "passed"
    assert "never was" in outcomes
    # With a source of its own, the one commit is the last call.
    assert "crashed" in outcomes or kind == "atomic memory"


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_submit_that_died_at_any_call_can_be_repeated(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with open_backend(kind, tmp_path) as backend:
            harness = ServiceHarness(backend)
            try:
                await ServiceHarness(crash_at(backend, at, after_call=after_the_call)).submit(
                    *DIAMOND
                )
            except Crash:
                again = await harness.submit(*DIAMOND)
            else:
                break

            assert again.job.id == job_id()
            assert again.keys == ("a",)
            await check_job_can_finish(harness)
    assert at > 4


@pytest.mark.parametrize("happens", ["sweep", "work"])
@scenario
async def test_a_concurrent_process_between_any_two_writes_of_a_submit_does_no_harm(
    happens: str, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)

            async def other_process_acts(harness: ServiceHarness = harness) -> None:
                await (harness.sweeper.sweep() if happens == "sweep" else harness.finish())

            ledger = InterposedPort(backend.ledger, "commit", after=other_process_acts, at=at)
            accepted = await harness.with_ports(ledger=ledger).submit(*DIAMOND)
            if ledger.calls < at:
                break
            await harness.finish()

            job = await harness.job()
            assert accepted.created
            assert job.state is JobState.COMPLETED
            assert job.intents == ()
            for key in "abcd":
                assert (await harness.event_types(key)).count("Task Pending") == 1
    assert at > 4


@scenario
async def test_two_sweepers_that_finish_one_submit_count_it_once(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        with pytest.raises(Crash):
            await ServiceHarness(crash_at(backend, 8, after_call=True)).submit(*DIAMOND)
        item, other = ServiceHarness(backend), ServiceHarness(backend)
        ledger = InterposedPort(backend.ledger, "commit", before=other.sweeper.sweep, at=2)
        item = item.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        finished = [harness.sweeper.repairs["intents_finished"] for harness in (item, other)]
        assert finished == [0, 1]
        assert (await other.job()).intents == ()


@scenario
async def test_a_sweeper_that_finds_the_one_task_there_writes_little_and_counts_no_repair(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        assert (await harness.job()).intents != ()  # the end of the task would close it
        before = (await harness.task("a")).version

        repairs = await harness.sweeper.sweep()

        assert repairs["intents_finished"] == 0
        assert (await harness.job()).intents == ()
        assert (await harness.task("a")).version == before
        await harness.finish()
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@scenario
async def test_a_job_of_one_task_is_written_twice_and_its_creation_closed_by_its_end(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        await harness.finish()

        job = await harness.job()
        assert (job.version, job.state, job.intents) == (2, JobState.COMPLETED, ())


@scenario
async def test_a_job_accepted_under_a_higher_limit_is_finished_under_a_lower_one(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        with pytest.raises(Crash):
            await ServiceHarness(crash_at(backend, 8, after_call=True)).submit(*DIAMOND)
        harness = ServiceHarness(backend, task_limit=1)

        await check_job_can_finish(harness)


@scenario
async def test_a_submit_is_finished_with_the_definitions_it_began_with(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        own = Definition(
            name="own", runner=RunnerKind.COMMAND, overridable=("argv",), queue="first"
        )
        await backend.definitions.put(TENANT, own)
        tasks = [make_task(key, name="own") for key in "abcd"]
        with pytest.raises(Crash):
            await ServiceHarness(crash_at(backend, 8, after_call=True)).submit(*tasks)
        half = len(await harness.states())
        await backend.definitions.put(TENANT, replace(own, queue="second"))

        await harness.sweeper.sweep()

        rows = [await harness.task(key) for key in "abcd"]
        assert 0 < half < 4
        assert {(row.spec.queue, row.spec.definition_version) for row in rows} == {("first", 1)}


@scenario
async def test_a_submit_that_cannot_be_finished_does_not_keep_others_from_it(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        dying = ServiceHarness(crash_at(backend, 8, after_call=True))
        with pytest.raises(Crash):
            await dying.submit(*DIAMOND, request_id="stuck")
        for key in await backend.blobs.list_keys("jobs/"):
            await backend.blobs.delete(key)
        with pytest.raises(Crash):
            await ServiceHarness(crash_at(backend, 8, after_call=True)).submit(*DIAMOND)

        await harness.sweeper.sweep()

        assert (await harness.job("stuck")).intents != ()
        assert (await harness.job()).intents == ()


@pytest.mark.parametrize(
    ("port", "method"),
    [("ledger", "get_job"), ("definitions", "get"), ("blobs", "put"), ("ledger", "create_jobs")],
)
@scenario
async def test_an_unavailable_store_is_reported_and_a_later_try_succeeds(
    port: str, method: str, tmp_path: Path
) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        flaky = FlakyPort(getattr(backend, port), method, times=None)

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(harness.with_ports(**{port: flaky}).submit(*DIAMOND))
        accepted = await harness.submit(*DIAMOND)

        assert accepted.created
        await check_job_can_finish(harness)
