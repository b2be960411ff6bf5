"""The spec that a child gets, and what happens when it cannot be built or the child not started."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import INLINE_LIMIT_BYTES
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import UsageError
from longshore.testing.fake_runner import Script
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.memory.backend import memory_backend
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.samples import HANGS, MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_results_of_the_parents_reach_the_child(kind: str, tmp_path: Path) -> None:
    large = ["x" * INLINE_LIMIT_BYTES]
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("a"),
            make_task("b"),
            make_task("c", "a", "b", input={"argv": ["x"]}),
            make_task("d"),
        )
        await harness.complete(task_id("a"), large)
        await harness.complete(task_id("b"), {"n": 1})
        await harness.dispatch()

        async with harness.running_worker():
            await harness.advance(SECOND)

        spec = next(spec for spec in harness.runner.specs if spec.key == "c")
        assert spec.dependency_outputs == {"a": large, "b": {"n": 1}}
        assert spec.input == {"argv": ["x"]}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_spec_contains_everything_that_the_child_needs(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        (spec,) = harness.runner.specs
        row = await harness.task("a")
        assert (spec.task_id, spec.job_id, spec.key) == (row.id, row.spec.job_id, "a")
        assert (spec.tenant, spec.attempt, spec.fence) == (TENANT, 1, row.fence)
        assert spec.definition.name == "command"
        assert spec.timeout == timedelta(minutes=5)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_order_that_can_never_be_carried_out_fails_the_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(start_error=UsageError("no such command")), HANGS)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=0.1))
            row = await harness.task("a")

        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert row.failure.category is ErrorCategory.VALIDATION


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_a_task_needs_is_looked_for_again_when_the_store_is_out_of_reach(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(input={"argv": ["x" * 5000]}))
        blobs = FlakyPort(backend.blobs, "get", times=3)

        async with harness.with_ports(blobs=blobs).running_worker():
            await harness.advance(timedelta(seconds=5))

        assert blobs.failures == 3
        assert (await harness.task("a")).attempt == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_whose_definition_is_lost_fails_with_a_reason(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.definitions.put(
            TENANT, Definition(name="own", runner=RunnerKind.COMMAND, overridable=("argv",))
        )
        await harness.submit(make_task(name="own"))
        empty = memory_backend(harness.clock).definitions

        async with harness.with_ports(definitions=empty).running_worker():
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert "own" in row.failure.message


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_runs_by_the_version_of_its_definition_that_was_there_when_it_was_submitted(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        first = Definition(
            name="own", runner=RunnerKind.COMMAND, overridable=("argv",), timeout=MINUTE
        )
        await backend.definitions.put(TENANT, first)
        await harness.submit(make_task(name="own"), request_id="before")
        await backend.definitions.put(TENANT, replace(first, timeout=2 * MINUTE))
        await harness.submit(make_task(name="own"), request_id="after")

        async with harness.running_worker():
            await harness.advance(SECOND)

        specs = {spec.task_id: spec for spec in harness.runner.specs}
        notices = [specs[task_id("a", request)] for request in ("before", "after")]
        assert [spec.definition.version for spec in notices] == [1, 2]
        assert [spec.timeout for spec in notices] == [MINUTE, 2 * MINUTE]
