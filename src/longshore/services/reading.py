"""Reading many rows of which some may be damaged: those that can be read are, and it is told which
cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.core.rows import TaskRow
from longshore.errors import BackendUnavailable
from longshore.ports.ledger import Ledger
from longshore.services.edges import stepped_over

logger = logging.getLogger(__name__)

_AT_ONCE = 500


@dataclass(slots=True)
class Read:
    """What came of it. Rows that do not exist are neither here nor there."""

    rows: list[TaskRow] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)  # ids of those that are damaged


async def read_rows(ledger: Ledger, task_ids: Sequence[str]) -> Read:
    """The rows of these tasks.

    Raises:
        BackendUnavailable: the ledger is out of reach.
    """
    read = Read()
    for start in range(0, len(task_ids), _AT_ONCE):
        some = task_ids[start : start + _AT_ONCE]
        try:
            read.rows += await ledger.tasks(some)
        except BackendUnavailable:
            raise
        except Exception:  # a row among them is damaged: which one is told below
            logger.exception("health.rows_unreadable")
            await _one_by_one(ledger, some, read)
    return read


async def _one_by_one(ledger: Ledger, task_ids: Sequence[str], read: Read) -> None:
    for task_id in task_ids:
        read.unread.add(task_id)
        with stepped_over(logger, "health.task_unreadable", task_id=task_id):
            row = await ledger.task(task_id)
            read.unread.discard(task_id)
            if row is not None:
                read.rows.append(row)
