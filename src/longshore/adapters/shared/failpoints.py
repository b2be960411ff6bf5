"""Failpoints: named places where a test can end this process, to see what the next one makes of it.

One stands before and after each step that somebody else can see, now or after a crash: a commit, a
file that is written, synced, named or removed, a lock that is taken, a process that is started or
ended. Nothing happens there unless a test has armed them; no setting and no variable can.

``verification.crash`` kills real processes at each of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

Failpoint = Literal[
    # The store: its file.
    "store.folder_created",
    "store.file_created",  # the file is there, and empty
    "store.wal_enabled",  # it has a write-ahead log
    "store.created",
    "store.migrating",  # not yet committed
    "store.migrated",
    "store.epoch_raising",  # not yet committed
    "store.epoch_raised",
    "store.closed",
    # The store: what is written to it.
    "write.locked",  # nobody else can write
    "write.group_begun",
    "write.rows_written",  # and their events and messages not
    "write.item_written",
    "write.committing",
    "write.committed",
    "write.waking",
    "write.woken",  # others know, and whoever asked for it does not
    # Bells.
    "notifier.created",  # it has no name yet
    "notifier.opened",
    "notifier.removed",
    # Blobs that have files of their own.
    "blob.draft_opened",
    "blob.draft_written",
    "blob.draft_synced",
    "blob.renamed",  # and its folder not yet synced
    "blob.synced",  # and no row refers to it yet
    "blob.replaced",  # no row refers to the file, which is there
    "blob.removed",
    # Who is here.
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
    # The keeper and its children.
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
"""Where a process can be ended; each says what has just happened, or is about to."""

FAILPOINTS: Final[tuple[str, ...]] = get_args(Failpoint)

_armed: Callable[[str], None] | None = None


def reach(point: Failpoint) -> None:
    """This process has come to a failpoint."""
    if _armed is not None:
        _armed(point)


def arm(act: Callable[[str], None]) -> None:
    """Let ``act`` be called with the name of each failpoint that is reached, on any thread."""
    global _armed
    _armed = act
