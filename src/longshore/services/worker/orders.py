"""From a claimed row to the order that its child is given: everything the row only refers to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from longshore.core.agents.plan import read_plan
from longshore.core.definition import BUILTIN, Definition, RunnerKind
from longshore.core.ids import task_id_of
from longshore.core.rows import TaskRow
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.runner import WorkOrder
from longshore.services.documents import Documents
from longshore.services.worker.sessions import sessions_of


async def order_for(
    row: TaskRow, fence: int, *, backend: Backend, documents: Documents, timeout: timedelta
) -> WorkOrder:
    """What the child of this attempt is told.

    Args:
        timeout: For those whose definition sets none.

    Raises:
        NotFound: the definition is lost.
        BackendUnavailable: something could not be read now.
    """
    spec = row.spec
    definition = await _definition(row, backend)
    return WorkOrder(
        task_id=spec.id,
        job_id=spec.job_id,
        key=spec.key,
        tenant=spec.tenant,
        attempt=row.attempt,
        fence=fence,
        definition=definition,
        timeout=_time_for(definition) or timeout,
        input=await documents.load(spec.input),
        dependency_outputs=await _dependency_outputs(row, backend, documents),
        checkpoints=await _checkpoints(row, documents),
        revision=row.revision,
        feedback=row.feedback,
        previous_output=await documents.load(row.previous_result),
        sessions=(
            await sessions_of(row, blobs=backend.blobs, documents=documents)
            if definition.runner is RunnerKind.AGENT and row.attempt > 1
            else {}
        ),
    )


def _time_for(definition: Definition) -> timedelta | None:
    """What an attempt may take; an agent that sets no time has that of all its steps."""
    if definition.timeout is None and definition.runner is RunnerKind.AGENT:
        plan, _ = read_plan(definition.options)
        return None if plan is None else plan.time
    return definition.timeout


async def _definition(row: TaskRow, backend: Backend) -> Definition:
    spec = row.spec
    if spec.definition_version == 0:
        found = BUILTIN.get(spec.definition)
    else:
        found = await backend.definitions.get(
            spec.tenant, spec.definition, version=spec.definition_version
        )
    if found is None:
        raise NotFound("definition", spec.definition)
    return found


async def _dependency_outputs(
    row: TaskRow, backend: Backend, documents: Documents
) -> dict[str, Any]:
    keys = await documents.load(row.spec.parents) or []
    parents = await backend.ledger.tasks([task_id_of(row.spec.job_id, key) for key in keys])
    return {parent.spec.key: await documents.load(parent.result) for parent in parents}


async def _checkpoints(row: TaskRow, documents: Documents) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    key = row.checkpoint
    while key is not None:
        kept = await documents.load_key(key)
        steps.setdefault(kept["step"], kept["result"])
        key = kept["previous"]
    return steps
