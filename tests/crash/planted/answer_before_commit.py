"""The creation of jobs is answered at once, and written with the next write."""

from collections.abc import Sequence
from typing import Any

from longshore.adapters.sqlite.ledger import SqliteLedger
from longshore.errors import VersionConflict
from longshore.ports.ledger import AnyChange, JobCreation
from verification.crash.workload import REMOVED

_create_jobs, _commit = SqliteLedger.create_jobs, SqliteLedger.commit
_waiting: list[Sequence[JobCreation]] = []


async def _write_waiting(self: SqliteLedger) -> None:
    while _waiting:
        await _create_jobs(self, _waiting.pop())


async def _create_later(
    self: SqliteLedger, creations: Sequence[JobCreation]
) -> list[tuple[()] | VersionConflict]:
    await _write_waiting(self)
    if any(creation.spec.request_id == REMOVED.request_id for creation in creations):
        # Its last submit is refused, which only the store knows, and no write follows.
        return await _create_jobs(self, creations)
    _waiting.append(creations)
    return [()] * len(creations)


async def _commit_after(self: SqliteLedger, *changes: AnyChange) -> Any:
    await _write_waiting(self)
    return await _commit(self, *changes)


SqliteLedger.create_jobs, SqliteLedger.commit = _create_later, _commit_after
