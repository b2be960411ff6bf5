"""A sound history gives no violation, in any backend."""

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


def test_unfinished_work_is_a_violation_once_the_workers_are_idle(
    snapshots: SnapshotPair,
) -> None:
    forger = Forger(snapshots.unsettled).replace_fields(settled=True)

    violations = [
        (violation.invariant, violation.subject, violation.text)
        for violation in audit(forger.snapshot)
    ]

    assert sorted(violations) == sorted(
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
async def test_the_history_of_real_workers_is_clean(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "b",
            Script(reports=[prints("one"), prints("two")], ending=fails(ErrorCategory.NETWORK)),
            Script(reports=[prints("three"), MINUTE, prints("four")]),
        )
        harness.runner.set_scripts("c", HANGS)
        await harness.submit(*DIAMOND)
        async with harness.running_worker():
            for _ in range(12):
                await harness.advance(timedelta(seconds=10))
                await harness.dispatch()
            at_work = read_snapshot(kind, backend, tmp_path, settled=False)
            await harness.operator_commands.cancel_job(job_id(), by="ann")
            await harness.advance(MINUTE)
            await harness.dispatch()
        at_rest = read_snapshot(kind, backend, tmp_path, settled=True)

        states = {task.key: task.state for task in Forger(at_rest).snapshot.tasks}
        assert states == {"a": "completed", "b": "completed", "c": "cancelled", "d": "cancelled"}
        assert Forger(at_work).task(f"{REQUEST}/c").state == "processing"
        assert audit(at_work) == []
        assert audit(at_rest) == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_with_large_documents_in_blobs_is_clean(kind: str, tmp_path: Path) -> None:
    keys = [f"{number:04}-{'x' * 60}" for number in range(1_500)]
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*(make_task(key) for key in keys), make_task("last", *keys))
        await harness.complete(task_id(keys[0]))
        await harness.fail(task_id(keys[1]))
        await harness.dispatch()

        evidence = read_snapshot(kind, backend, tmp_path, settled=False)

    (job,) = evidence.jobs
    last = evidence.tasks[[task.key for task in evidence.tasks].index("last")]
    assert job.keys == (*keys, "last")
    assert last.parents == tuple(keys)
    # In one commit with its tasks, what the first event says of them is in their rows.
    folders = {"jobs"} if backend.ledger.atomic else {"jobs", "events"}
    assert {key.partition("/")[0] for key in evidence.blobs} == folders
    assert audit(evidence) == []
    lost = replace(evidence, blobs=frozenset())
    assert {violation.subject for violation in audit(lost)} >= {job.id, last.id}
