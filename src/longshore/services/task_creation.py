"""Creating tasks' rows: what submitting a job and adding tasks to one have in common.

On a ledger that commits one row at a time an intent says which tasks are to be created. Its body
holds all that the rows are made of, so that whoever finishes it arrives at the same ones.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from longshore.core import task as tasks
from longshore.core.backoff import RetryPolicy
from longshore.core.dag import PROBLEM_LIMIT, Problem
from longshore.core.definition import BUILTIN, Definition
from longshore.core.planning import Plan, PlannedTask
from longshore.core.rows import Intent
from longshore.core.submission import canonical_text, definitions_named_in
from longshore.errors import InvalidJob, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.transitions import Transitions

_MICROSECOND = timedelta(microseconds=1)


class TaskCreation:
    """Makes rows of planned tasks."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        retry: RetryPolicy,
        task_limit: int,
        input_limit_bytes: int,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._input_limit_bytes = input_limit_bytes
        self.retry = retry
        self.task_limit = task_limit

    async def definitions(
        self, tenant: str, document: Any
    ) -> tuple[dict[str, Definition], list[Problem]]:
        """The definitions that the document names, and the names that nobody knows."""
        found: dict[str, Definition | None] = {}
        unknown: list[Problem] = []
        for path, name in definitions_named_in(document):
            if name not in found:
                stored = await self._backend.definitions.get(tenant, name)
                found[name] = stored or BUILTIN.get(name)
            if found[name] is None:
                unknown.append(Problem(path=path, message=f"no definition is called {name!r}"))
            if len(unknown) == PROBLEM_LIMIT:
                break
        return {name: one for name, one in found.items() if one is not None}, unknown

    async def versions(self, tenant: str, versions: dict[str, int]) -> dict[str, Definition]:
        """Definitions as they were when the tasks were accepted."""
        found = {}
        for name, version in versions.items():
            stored = (
                await self._backend.definitions.get(tenant, name, version=version)
                if version
                else BUILTIN.get(name)
            )
            if stored is None:
                message = f"version {version} of definition {name!r} is gone"
                raise UsageError(message)
            found[name] = stored
        return found

    def refuse_large(self, planned: Plan) -> None:
        """Raises ``InvalidJob`` with all inputs that are too large."""
        limit = self._input_limit_bytes
        large = [
            Problem(
                path=f"tasks[{place}].input",
                message=f"has {task.spec.input.size} bytes as JSON; at most {limit} are allowed",
            )
            for place, task in enumerate(planned.tasks)
            if task.spec.input is not None and task.spec.input.size > limit
        ]
        if large:
            raise InvalidJob(large)

    def recipe(self, document: Any, definitions: dict[str, Definition]) -> dict[str, Any]:
        """What an intent must hold, so that another process can make the same plan."""
        return {
            "document": json.loads(canonical_text(document)),
            "versions": {name: one.version for name, one in definitions.items()},
            # Of the settings now, or half of the tasks might be tried more often than the others.
            "retry": {
                "maxAttempts": self.retry.max_attempts,
                "baseUs": self.retry.base // _MICROSECOND,
                "capUs": self.retry.cap // _MICROSECOND,
            },
        }

    async def keep_documents(self, planned: Plan) -> None:
        """Store what the rows will refer to."""
        for key, data in planned.blobs:
            await self._backend.blobs.put(key, data)

    async def create(self, intent: Intent, planned: Plan) -> int:
        """Create one row after another, those that are not there yet; how many they were."""

        # Those that wait first: a root may be run and done before the next row is written, and
        # whoever tells its dependents must find them.
        def waits(task: PlannedTask) -> bool:
            return not task.awaits

        created = 0
        for task in sorted(planned.tasks, key=waits):
            change = tasks.create(
                task.spec,
                task.awaits,
                now=self._backend.clock.now(),
                change_id=f"{intent.id}-{task.spec.number}",
            )
            try:
                await self._transitions.commit(change)
            except VersionConflict:
                continue  # it is there already, and may have moved on
            created += 1
        return created


def retry_in(recipe: dict[str, Any]) -> RetryPolicy:
    """The retries of a recipe."""
    document = recipe["retry"]
    return RetryPolicy(
        max_attempts=document["maxAttempts"],
        base=document["baseUs"] * _MICROSECOND,
        cap=document["capUs"] * _MICROSECOND,
    )
