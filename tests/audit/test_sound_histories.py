"""A history that is as it should be gives no finding, whatever backend it was stored in."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.audit.audit import audit
from longshore.core.tasks.failures import ErrorCategory
from longshore.testing.fake_runner import Script, fails, prints
from tests.audit.conftest import SnapshotPair, read_snapshot
from tests.audit.forger import Forger
from tests.unit.services.harness import (
    BACKENDS,
    REQUEST,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.samples import DIAMOND, HANGS, MINUTE


def test_a_history_at_rest_is_clean(snapshots: SnapshotPair) -> None:
    assert audit(snapshots.settled) == []


def test_a_history_in_the_middle_of_work_is_clean(snapshots: SnapshotPair) -> None:
    assert audit(snapshots.unsettled) == []


def test_what_is_left_in_the_middle_of_work_is_lost_if_the_workers_rest(
    snapshots: SnapshotPair,
) -> None:
    forger = Forger(snapshots.unsettled).replace_fields(settled=True)

    found = [(one.invariant, one.subject, one.text) for one in audit(forger.snapshot)]

    assert sorted(found) == sorted(
        [
            (1, forger.task("running/a").id, "at rest, it is still processing"),
            (1, forger.task("running/c").id, "at rest, it is due and no worker has taken it"),
            (
                1,
                forger.task("running/d").id,
                "at rest, its job has not recorded that it is completed",
            ),
        ]
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_real_workers_leave_is_clean(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts(
            "b",
            Script(reports=[prints("one"), prints("two")], ending=fails(ErrorCategory.NETWORK)),
            Script(reports=[prints("three"), MINUTE, prints("four")]),
        )
        stage.runner.set_scripts("c", HANGS)
        await stage.submit(*DIAMOND)
        async with stage.running_worker():
            for _ in range(12):
                await stage.advance(timedelta(seconds=10))
                await stage.dispatch()
            at_work = read_snapshot(kind, backend, tmp_path, settled=False)
            await stage.canceller.cancel_job(job_id(), by="ann")
            await stage.advance(MINUTE)
            await stage.dispatch()
        at_rest = read_snapshot(kind, backend, tmp_path, settled=True)

        states = {task.key: task.state for task in Forger(at_rest).snapshot.tasks}
        assert states == {"a": "completed", "b": "completed", "c": "cancelled", "d": "cancelled"}
        assert Forger(at_work).task(f"{REQUEST}/c").state == "processing"
        assert audit(at_work) == []
        assert audit(at_rest) == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_whose_graph_and_events_are_kept_elsewhere_is_clean(
    kind: str, tmp_path: Path
) -> None:
    keys = [f"{number:04}-{'x' * 60}" for number in range(1_500)]
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*(make_task(key) for key in keys), make_task("last", *keys))
        await stage.complete(task_id(keys[0]))
        await stage.fail(task_id(keys[1]))
        await stage.dispatch()

        evidence = read_snapshot(kind, backend, tmp_path, settled=False)

    (job,) = evidence.jobs
    last = evidence.tasks[[task.key for task in evidence.tasks].index("last")]
    assert job.keys == (*keys, "last")
    assert last.parents == tuple(keys)
    assert {key.partition("/")[0] for key in evidence.blobs} == {"jobs", "events"}
    assert audit(evidence) == []
    lost = replace(evidence, blobs=frozenset())
    assert {one.subject for one in audit(lost)} >= {job.id, last.id}
