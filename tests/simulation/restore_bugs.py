"""Bugs of backups and restores: what a backup lacks, and which fences a restored store issues."""

from tests.planting import Condition, Replace, Value
from tests.simulation.task_bugs import Bug

_BACKUP = "verification.simulation.restores:SimulatedBackup"

RESTORE_BUGS = (
    Bug(
        "retention removes blobs while a backup copies them",
        at="testing.memory.retention:MemoryRetention.remove_remains",
        do=Condition("paused", False),
    ),
    Bug(
        "a backup copies blobs before rows",
        at=f"{_BACKUP}.begin",
        do=(
            Replace("_copy_rows()", "self._copy_blobs()"),
            Replace("_copy_blobs", "self._copy_rows", nth=2),
        ),
    ),
    Bug(
        "a restored store continues in the epoch of the backup",
        at=f"{_BACKUP}.restore",
        do=Replace("_epoch_at()", "0"),
    ),
    Bug(
        "a claim takes no notice of the epoch",
        at="core.tasks.lease:next_fence",
        do=Value("return", "last + 1"),
    ),
)
