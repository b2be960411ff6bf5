"""Failpoints: named points where a test can kill this process, to check that the next one recovers.

There is one before and after each step with an effect outside of this process: a commit, a file
that is written, synced, renamed or removed, a lock, a process that starts or ends. They do nothing
unless a test arms them; no setting and no environment variable can.

``verification.crash`` kills real processes at each of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

Failpoint = Literal[
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
    "write.rows_written",  # their events and messages are not
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
    "attempt.child_killing",
    "attempt.child_ended",
    "attempt.folder_removing",
    "attempt.folder_removed",
]
"""Each name says what has just happened or is about to happen."""

FAILPOINTS: Final[tuple[str, ...]] = get_args(Failpoint)

_armed: Callable[[str], None] | None = None


def reach(point: Failpoint) -> None:
    """Report that this process is at a failpoint."""
    if _armed is not None:
        _armed(point)


def arm(act: Callable[[str], None]) -> None:
    """Call ``act`` with the name of each failpoint that is reached, on any thread."""
    global _armed
    _armed = act
