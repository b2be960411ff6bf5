"""Creates the rows of tasks, for submitted jobs and for tasks added to jobs.

On a ledger that commits one row at a time, an intent says which tasks to create. Its body contains
everything that the rows are made of, so that any process that finishes it creates the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.document_reader import Problem
from longshore.core.jobs.dag import PROBLEM_LIMIT
from longshore.core.jobs.planning import PlannedTask, SubmissionPlan
from longshore.core.jobs.submission import canonical_text, referenced_definitions
from longshore.core.tasks import task as tasks
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import Intent
from longshore.errors import InvalidJob, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.transitions import Transitions

_MICROSECOND = timedelta(microseconds=1)


class TaskCreation:
    """Creates the rows of planned tasks."""

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

    async def find_definitions(
        self, tenant: str, document: Any, own: Collection[str] = ()
    ) -> tuple[dict[str, Definition], list[Problem]]:
        """Returns the stored definitions that the document names, and the unknown names.

        Args:
            own: Names of definitions that come with the document.
        """
        definitions: dict[str, Definition | None] = {}
        unknown: list[Problem] = []
        for path, name in referenced_definitions(document):
            if name not in definitions:
                stored = await self._backend.definitions.get(tenant, name)
                definitions[name] = stored or BUILTIN_DEFINITIONS.get(name)
            if definitions[name] is None and name not in own:
                unknown.append(Problem(path=path, message=f"no definition is called {name!r}"))
            if len(unknown) == PROBLEM_LIMIT:
                break
        return {name: item for name, item in definitions.items() if item is not None}, unknown

    async def load_versions(self, tenant: str, versions: dict[str, int]) -> dict[str, Definition]:
        """Returns the definitions in the versions with which the tasks were accepted."""
        definitions = {}
        for name, version in versions.items():
            stored = (
                await self._backend.definitions.get(tenant, name, version=version)
                if version
                else BUILTIN_DEFINITIONS.get(name)
            )
            if stored is None:
                message = f"version {version} of definition {name!r} is gone"
                raise UsageError(message)
            definitions[name] = stored
        return definitions

    def check_input_sizes(self, planned: SubmissionPlan) -> None:
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

    def intent_body(self, document: Any, definitions: dict[str, Definition]) -> dict[str, Any]:
        """Returns the body of an intent, from which another process can make the same plan."""
        return {
            "document": json.loads(canonical_text(document)),
            "versions": {name: item.version for name, item in definitions.items()},
            # From the current settings: all tasks of the job must have the same number of attempts.
            "retry": {
                "maxAttempts": self.retry.max_attempts,
                "baseUs": self.retry.base // _MICROSECOND,
                "capUs": self.retry.cap // _MICROSECOND,
            },
        }

    async def store_documents(self, planned: SubmissionPlan) -> None:
        """Store the documents that the rows refer to."""
        for key, data in planned.blobs:
            await self._backend.blobs.put(key, data)

    async def create_tasks(self, intent: Intent, planned: SubmissionPlan) -> int:
        """Create the rows that do not exist yet, one by one, and return how many."""

        # Waiting tasks first: a root may complete before the next row is written, and the
        # dispatcher must then find its dependents.
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
                continue  # it exists, and may have changed since
            created += 1
        return created


def retry_policy_in(body: dict[str, Any]) -> RetryPolicy:
    """Returns the retry policy of a definition."""
    document = body["retry"]
    return RetryPolicy(
        max_attempts=document["maxAttempts"],
        base=document["baseUs"] * _MICROSECOND,
        cap=document["capUs"] * _MICROSECOND,
    )
