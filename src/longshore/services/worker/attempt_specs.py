"""Builds the spec of an attempt from its claimed row: reads everything that the row refers to."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from longshore.core.agents.plan import read_plan
from longshore.core.agents.transcripts import merge_entries
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import Document, conversation_part_key
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore
from longshore.ports.runner import AttemptSpec, Conversation
from longshore.ports.task_source import ClaimedTask
from longshore.services.reads import get_definition, iter_pages
from longshore.services.spill import LONG_BYTES, DocumentStore
from longshore.services.worker.context import WorkerContext

_MAX_REMEMBERED = 1_000


async def load_conversations(
    row: TaskRow, *, blobs: BlobStore, documents: DocumentStore
) -> Mapping[str, Conversation]:
    """Returns the conversations of a task by id, each entry once."""
    prefix = conversation_part_key(row.spec.job_id, row.spec.key)
    before: dict[str, list[list[Any]]] = defaultdict(list)
    entries: dict[str, list[list[Any]]] = defaultdict(list)
    async for keys in iter_pages(partial(blobs.list_keys, prefix)):
        for key in keys:
            part = await documents.load_key(key)
            into = entries if part["revision"] == row.revision else before
            into[part["session"]].append(part["entries"])
    return {
        name: Conversation(
            earlier_entries=merge_entries(before[name]), entries=merge_entries(entries[name])
        )
        for name in (*before, *(entries.keys() - before.keys()))
    }


async def build_attempt_spec(context: WorkerContext, row: TaskRow, fence: int) -> AttemptSpec:
    """Returns what the child of this attempt receives.

    Raises:
        NotFound: the definition does not exist.
        BackendUnavailable: something could not be read.
    """
    backend, documents = context.backend, context.documents
    spec = row.spec
    definition = await read_definition(context, row)
    results = await _dependency_results(context, row)
    loaded = (spec.input, row.previous_result, *results.values())
    size = sum(document.size for document in loaded if document is not None)
    return AttemptSpec(
        task_id=spec.id,
        job_id=spec.job_id,
        key=spec.key,
        tenant=spec.tenant,
        attempt=row.attempt,
        fence=fence,
        definition=definition,
        timeout=timeout_of(definition) or context.timeout,
        input=await documents.load(spec.input),
        dependency_outputs={key: await documents.load(item) for key, item in results.items()},
        is_long=size > LONG_BYTES or row.checkpoint is not None,
        checkpoints=await _checkpoints(row, documents),
        revision=row.revision,
        feedback=row.feedback,
        previous_output=await documents.load(row.previous_result),
        conversations=(
            await load_conversations(row, blobs=backend.blobs, documents=documents)
            if definition.runner is RunnerKind.AGENT and row.attempt > 1
            else {}
        ),
    )


def timeout_of(definition: Definition) -> timedelta | None:
    """Returns the timeout of an attempt; for an agent without one, the sum of its steps."""
    if definition.timeout is None and definition.runner is RunnerKind.AGENT:
        plan, _ = read_plan(definition.options)
        return None if plan is None else plan.max_duration
    return definition.timeout


async def definition_of(row: TaskRow, backend: Backend) -> Definition:
    """Returns the definition of a task, in the version with which it was submitted.

    Raises:
        NotFound: it does not exist.
    """
    spec = row.spec
    version = spec.definition_version
    definition = await get_definition(backend, spec.tenant, spec.definition, version)
    if definition is None:
        raise NotFound("definition", spec.definition)
    return definition


async def read_definition(context: WorkerContext, row: TaskRow) -> Definition:
    """The same as ``definition_of``, read once by a worker."""
    version = (row.spec.tenant, row.spec.definition, row.spec.definition_version)
    definition: Definition | None = context.definition_cache.get(version)
    if definition is None:
        definition = await definition_of(row, context.backend)
        _remember(context.definition_cache, version, definition)
    return definition


async def _dependency_results(context: WorkerContext, row: TaskRow) -> dict[str, Document | None]:
    keys = await context.documents.load(row.spec.parents) or []
    ids = {key: task_id_of(row.spec.job_id, key) for key in keys}
    results = {
        key: context.result_cache[id_] for key, id_ in ids.items() if id_ in context.result_cache
    }
    missing = [id_ for key, id_ in ids.items() if key not in results]
    if missing:
        for parent in await context.backend.ledger.get_tasks(missing):
            results[parent.spec.key] = parent.result
            # The parents of a claimed task have completed, which is final.
            remember_result(context, parent.id, parent.result)
    return {key: results[key] for key in keys if key in results}


def results_at_hand(context: WorkerContext, claimed: ClaimedTask) -> str | None:
    """Returns the results of a task's parents, by their keys, as JSON.

    Empty without parents; None if a result is not in memory.
    """
    if (parents := claimed.parents) is None:
        return ""
    if parents.text is None:
        return None
    items = []
    for key in json.loads(parents.text):
        result = context.result_cache.get(task_id_of(claimed.job_id, key))
        if result is None or result.text is None:
            return None
        items.append(f"{json.dumps(key)}:{result.text}")
    return f"{{{','.join(items)}}}"


def remember_result(context: WorkerContext, task_id: str, result: Document | None) -> None:
    """Keep the result of a completed task for its dependents."""
    _remember(context.result_cache, task_id, result)


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _MAX_REMEMBERED:
        cache.clear()
    cache[key] = value


async def _checkpoints(row: TaskRow, documents: DocumentStore) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    key = row.checkpoint
    while key is not None:
        checkpoint = await documents.load_key(key)
        steps.setdefault(checkpoint["step"], checkpoint["result"])
        key = checkpoint["previous"]
    return steps
