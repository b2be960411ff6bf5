"""A history that is as it should be gives no finding, whatever backend it was stored in."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.failures import ErrorCategory
from longshore.testing.auditing.audit import audit
from longshore.testing.runner import Script, fails, prints
from tests.auditing.conftest import Histories, gathered
from tests.auditing.forging import Forger
from tests.unit.services.samples import DIAMOND, HANGS, MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    REQUEST,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)


def test_a_history_at_rest_is_clean(histories: Histories) -> None:
    assert audit(histories.at_rest) == []


def test_a_history_in_the_middle_of_work_is_clean(histories: Histories) -> None:
    assert audit(histories.at_work) == []


def test_what_is_left_in_the_middle_of_work_is_lost_if_the_workers_rest(
    histories: Histories,
) -> None:
    forger = Forger(histories.at_work).with_(settled=True)

    found = [(one.invariant, one.subject, one.text) for one in audit(forger.evidence)]

    assert sorted(found) == sorted(
        [
            (1, forger.task("running/a").id, "at rest, it is still processing"),
            (1, forger.task("running/c").id, "at rest, it is due and nobody has taken it"),
            (
                1,
                forger.task("running/d").id,
                "at rest, its job has not heard that it is completed",
            ),
        ]
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_real_workers_leave_is_clean(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays(
            "b",
            Script(says=[prints("one"), prints("two")], ending=fails(ErrorCategory.NETWORK)),
            Script(says=[prints("three"), MINUTE, prints("four")]),
        )
        stage.runner.plays("c", HANGS)
        await stage.submit(*DIAMOND)
        async with stage.working():
            for _ in range(12):
                await stage.passes(timedelta(seconds=10))
                await stage.dispatch()
            at_work = gathered(kind, backend, tmp_path, settled=False)
            await stage.cancelling.cancel(job_id(), by="ann")
            await stage.passes(MINUTE)
            await stage.dispatch()
        at_rest = gathered(kind, backend, tmp_path, settled=True)

        states = {task.key: task.state for task in Forger(at_rest).evidence.tasks}
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
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*(a_task(key) for key in keys), a_task("last", *keys))
        await stage.complete(task_id(keys[0]))
        await stage.fail(task_id(keys[1]))
        await stage.dispatch()

        evidence = gathered(kind, backend, tmp_path, settled=False)

    (job,) = evidence.jobs
    last = evidence.tasks[[task.key for task in evidence.tasks].index("last")]
    assert job.keys == (*keys, "last")
    assert last.parents == tuple(keys)
    assert {key.partition("/")[0] for key in evidence.blobs} == {"jobs", "events"}
    assert audit(evidence) == []
    lost = replace(evidence, blobs=frozenset())
    assert {one.subject for one in audit(lost)} >= {job.id, last.id}
