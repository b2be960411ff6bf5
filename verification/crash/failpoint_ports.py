"""All failpoints: in the package, and before and after each call of a port that writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from longshore.ports.backend import Backend

WRITE_CALLS: Final[dict[str, tuple[str, ...]]] = {
    "ledger": ("commit", "create_jobs"),
    "source": ("join", "leave", "claim", "turn", "end_worker"),
    "queue_controls": ("pause", "hold", "resume"),
    "events": ("append",),
    "output": ("append",),
    "blobs": ("put", "delete"),
    "definitions": ("put", "delete"),
    "keys": ("add", "revoke"),
    "budgets": ("commit",),
    "retention": ("remove_jobs", "remove_remains", "remove_other_events"),
}
"""The writing calls of each port, by the port's name in a backend."""
PACKAGE_FAILPOINTS: Final = (
    # The store: its file.
    "store.folder_created",
    "store.file_created",  # the file is empty
    "store.wal_enabled",  # it has a write-ahead log
    "store.created",
    "store.migrating",  # not yet committed
    "store.migrated",
    "store.epoch_raising",  # not yet committed
    "store.epoch_raised",
    "store.closed",
    # The store: what is written to it.
    "write.locked",  # no other process can write
    "write.group_begun",
    "write.rows_written",  # their events are not
    "create.rows_written",  # of new jobs; their events are not in the feed
    "turn.rows_written",  # of a worker's turn; their events are not
    "write.item_written",
    "write.committing",
    "write.committed",
    "write.waking",
    "write.woken",  # the caller has no answer yet
    # Pipes for wake-ups.
    "notifier.created",  # it has a temporary name
    "notifier.opened",
    "notifier.removed",
    # Blobs that have files of their own.
    "blob.draft_opened",
    "blob.draft_written",
    "blob.draft_synced",
    "blob.renamed",  # its folder is not synced yet
    "blob.synced",  # no row refers to it yet
    "blob.replaced",  # no row refers to the file any more
    "blob.removed",
    # Retention.
    "retention.rows_removed",  # not yet committed; the job is still in the feed
    "retention.files_removed",  # the rows of its blobs are not
    # The worker registry.
    "worker.locked",  # its lock has no name yet
    "worker.lock_published",
    "worker.registered",
    "worker.deregistering",
    "worker.deregistered",
    "worker.child_recording",
    "worker.child_recorded",
    "worker.child_removing",
    "worker.child_removed",
    "worker.dead_reaping",
    "worker.dead_reaped",
    "worker.role_acquired",
    # The fork server and its children.
    "forkserver.starting",
    "forkserver.started",
    "forkserver.ready",
    "forkserver.ending",
    "forkserver.ended",
    "attempt.folder_created",
    "attempt.spec_written",
    "attempt.child_requested",
    "attempt.child_started",
    "attempt.step_answering",
    "attempt.step_answered",
    "attempt.child_stopping",
    "attempt.child_ended",
    "attempt.folder_removing",
    "attempt.folder_removed",
)
"""The names in the package, each with what has just happened or is about to happen."""
SLOT_FAILPOINTS: Final = (
    "slot.opening",
    "slot.opened",
    "slot.task_giving",
    "slot.task_given",
    "slot.record_writing",
    "slot.record_written",
    "slot.tasks_taking_back",
    "slot.tasks_taken_back",
    "slot.child_stopping",
    "slot.child_replacing",
    "slot.child_ended",
    "slot.step_answering",
    "slot.step_answered",
    "slot.closing",
    "slot.page_removing",
    "slot.page_removed",
)
"""The names in the child slots, which no worker uses yet: ``tests/execution`` kills at each."""
BACKUP_FAILPOINTS: Final = (
    "backup.locked",
    "backup.draft_named",  # another process may remove it
    "backup.draft_created",
    "backup.database_copied",
    "backup.file_synced",
    "backup.file_copied",
    "backup.folder_synced",
    "backup.archive_synced",
    "backup.published",  # its parent folder is not synced yet
    "backup.linked",
)
"""The names in a backup: ``tests/adapters/sqlite/test_backup.py`` kills at each."""
RARE_FAILPOINTS: Final = (
    "backup.draft_removing",  # of a process that died
    "blob.noted_removed",  # after a backup
    "restore.file_copied",
    "restore.prepared",
    "store.upgrade_copied",
    "store.upgraded_copy_named",
)
"""The names in restores and upgrades, and after backups: the same tests kill at each."""
PORT_FAILPOINTS: Final = tuple(
    f"{port}.{call}:{when}"
    for port, calls in WRITE_CALLS.items()
    for call in calls
    for when in ("before", "after")
)

OnReached = Callable[[str], None]


def with_failpoints(backend: Backend, reached: OnReached) -> Backend:
    """A copy of the backend that calls ``reached`` before and after each writing call."""
    ports: dict[str, Any] = {
        name: _FailpointPort(getattr(backend, name), name, reached) for name in WRITE_CALLS
    }
    return replace(backend, **ports)


class _FailpointPort:
    """Forwards every call to a port."""

    def __init__(self, port: Any, name: str, reached: OnReached) -> None:
        self._port = port
        self._name = name
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        return (
            self._with_failpoints(attribute, name) if name in WRITE_CALLS[self._name] else attribute
        )

    def _with_failpoints(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._reached(f"{self._name}.{name}:before")
            answer = await method(*arguments, **named)
            self._reached(f"{self._name}.{name}:after")
            return answer

        return call
