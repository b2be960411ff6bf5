"""A seed gives the same run, bit for bit, and faults behave as they should."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from random import Random

import pytest

from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from tests.simulation.harness import ALL_FAULTS, calm_simulation, make_process, simulated
from verification.simulation.campaign import MIN_RUNS_FOR_ALL_FAULTS, Tally, run_campaign
from verification.simulation.faults import AWS_ONLY, Fault, FaultProfile, Faults, faults_of
from verification.simulation.run import Scenario, run
from verification.simulation.simulation import TENANT
from verification.simulation.workload import ActionKind

SECOND = timedelta(seconds=1)
DIGEST = (
    "from verification.simulation.run import Scenario, run;"
    "print([run(Scenario(seed=seed)).digest for seed in (1, 2, 3)])"
)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = run(Scenario(seed=seed)), run(Scenario(seed=seed))
    assert first.digest == second.digest
    assert first.fault_counts == second.fault_counts
    assert first.virtual_seconds == second.virtual_seconds


def test_different_seeds_give_different_runs() -> None:
    assert run(Scenario(seed=1)).digest != run(Scenario(seed=2)).digest


def test_a_run_does_not_depend_on_the_hash_seed_of_its_process() -> None:
    def digests(hash_seed: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout

    assert digests("1") == digests("4711")


def test_a_run_without_faults_has_no_crashes_and_no_lost_answers() -> None:
    for seed in range(5):
        report = run(Scenario(seed=seed, without=ALL_FAULTS), keep_trace=True)
        assert report.violations == ()
        assert report.fault_counts.total() == 0
        assert not any(entry.action in ("dies", "answer lost") for entry in report.trace)


def test_leaving_out_a_fault_does_not_change_the_probabilities_of_the_others() -> None:
    def chances(faults: Faults) -> list[bool]:
        return [faults.occurs(Fault.THROTTLE, Random(n)) for n in range(2_000)]

    for seed in range(20):
        full = Faults(Random(seed))
        less = Faults(Random(seed), without={Fault.UNKNOWN, Fault.CRASH})
        assert chances(full) == chances(less)
        assert less.times(Fault.CRASH) == 0
        assert less.times(Fault.PAUSE) == full.times(Fault.PAUSE)


def test_only_the_chosen_actions_are_carried_out() -> None:
    full = run(Scenario(seed=3))
    some = run(Scenario(seed=3, actions=(0,)))
    assert (full.actions_run > 1, some.actions_run) == (True, 1)


@simulated
async def test_calls_of_a_dead_process_never_return_and_are_never_made() -> None:
    simulation = calm_simulation()
    process = make_process(simulation)
    await process.services.backend.blobs.put("before", b"")
    process.die()
    putting = asyncio.ensure_future(process.services.backend.blobs.put("after", b""))
    await asyncio.sleep(1_000)
    assert not putting.done()
    assert await simulation.backend.blobs.list_keys("") == ["before"]


@simulated
async def test_a_process_stays_dead_when_one_of_its_calls_is_cancelled() -> None:
    process = make_process(calm_simulation())
    process.die()
    first, second = (
        asyncio.ensure_future(process.services.backend.blobs.put(key, b"")) for key in "ab"
    )
    await asyncio.sleep(1)
    first.cancel()
    third = asyncio.ensure_future(process.services.backend.blobs.put("c", b""))
    await asyncio.sleep(1)
    assert (first.cancelled(), second.done(), third.done()) == (True, False, False)


@simulated
async def test_a_process_that_dies_does_not_run_its_finally_blocks() -> None:
    simulation = calm_simulation()
    process = make_process(simulation)
    steps: list[str] = []

    async def work() -> None:
        try:
            await process.services.backend.clock.sleep(simulation.settings.worker.renew_every)
            steps.append("continued")
        finally:
            steps.append("cleaned up")

    simulation.start_task(work())
    await asyncio.sleep(1)
    process.die()
    await asyncio.sleep(1_000)
    assert steps == []


@simulated
async def test_a_paused_machine_does_nothing_until_it_resumes() -> None:
    simulation = calm_simulation()
    process = make_process(simulation)
    process.machine.pause(60)
    await process.services.backend.blobs.put("late", b"")
    assert simulation.time() >= 60


@simulated
async def test_calls_of_a_disconnected_process_fail() -> None:
    simulation = calm_simulation()
    process = make_process(simulation)
    process.disconnected_until = 60
    with pytest.raises(BackendUnavailable):
        await process.services.backend.blobs.put("a", b"")
    await asyncio.sleep(60)
    await process.services.backend.blobs.put("a", b"")


@simulated
async def test_only_the_receiver_of_an_early_event_reads_an_old_row() -> None:
    simulation = calm_simulation()
    receiver, other_process = make_process(simulation, "a"), make_process(simulation, "b")
    document = {"tasks": [{"taskId": "t", "name": "python"}]}
    await receiver.services.producer.submit(TENANT, "r", document)
    task_id = task_id_of(job_id_of(TENANT, "r"), "t")
    await receiver.services.operator_commands.cancel_task(TENANT, task_id, by="me")
    simulation.faults.occurs = lambda fault, _: fault is Fault.EVENT_EARLY  # type: ignore[method-assign]

    async def receive_and_read(backend: Backend) -> list[TaskRow]:
        await backend.bus.receive("x", types=["Task Cancelled"], limit=1, wait=SECOND)
        return await backend.ledger.get_tasks([task_id])

    (early,) = await asyncio.create_task(receive_and_read(receiver.services.backend))
    (current,) = await other_process.services.backend.ledger.get_tasks([task_id])
    assert (early.state, current.state) == (TaskState.PENDING, TaskState.CANCELLED)


def test_a_fault_that_never_occurs_fails_the_campaign() -> None:
    tally = Tally(runs=MIN_RUNS_FOR_ALL_FAULTS)
    tally.fault_counts.update(dict.fromkeys(faults_of(tally.profile), 1))
    del tally.fault_counts[Fault.PAUSE]
    assert tally.missing_faults == [Fault.PAUSE]
    assert not tally.clean
    tally.fault_counts[Fault.PAUSE] = 1
    assert tally.clean


def test_faults_of_aws_must_occur_in_the_aws_profile_only() -> None:
    elsewhere = set(faults_of(FaultProfile.DEFAULT))
    tally = Tally(runs=MIN_RUNS_FOR_ALL_FAULTS, profile=FaultProfile.AWS)
    tally.fault_counts.update(dict.fromkeys(elsewhere, 1))
    assert set(tally.missing_faults) == AWS_ONLY
    assert set(Fault) - elsewhere == AWS_ONLY


def test_an_action_that_never_succeeds_is_reported() -> None:
    tally = Tally(runs=MIN_RUNS_FOR_ALL_FAULTS)
    tally.action_counts.update({kind: 1 for kind in ActionKind if kind is not ActionKind.APPROVE})
    assert tally.missing_actions == [ActionKind.APPROVE]
    tally.action_counts[ActionKind.APPROVE] = 1
    assert tally.missing_actions == []


def test_several_processes_give_the_same_totals_as_one() -> None:
    single, parallel = run_campaign(range(30), jobs=1), run_campaign(range(30), jobs=2)
    assert single.runs == parallel.runs == 30
    assert single.fault_counts == parallel.fault_counts
    assert single.action_counts == parallel.action_counts
    assert single.virtual_seconds == pytest.approx(parallel.virtual_seconds)
    assert single.repeated == parallel.repeated == 1
    assert single.nondeterministic_seeds == parallel.nondeterministic_seeds == []
