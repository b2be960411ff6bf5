"""How a page of events is found: each way is a walk that passes over little, however long the log.

SQLite, left alone, reads every event of the tenant and sorts them, because an index that begins
with the tenant looks better to it than the order in which they stand. So each statement names its
index.

===================  =============================================================================
asked near the end   along the log itself: whoever follows it passes over what was told meanwhile
of one entity        that entity's events
of one job           positions of that job's events, from an index alone; then the rows of one page
of one type          along the index by type
of a tenant          along the same index, one walk a type, merged
===================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.core.events.codec import EVENT_TYPES

NEAR_END_POSITIONS = 1_000
"""So many positions before the end of the log, walking along it beats everything else."""

_BY_ENTITY = "events INDEXED BY events_by_entity"
_BY_TYPE = "events INDEXED BY events_by_type"
_AFTER_POSITION = "tenant = :tenant AND position > :after"
_PAGE = "ORDER BY position LIMIT :limit"
_JOB = "entity = 'JOB#' || :job"
# Everything between TASK#job_ and TASK#job` belongs to the job's tasks.
_TASKS = "entity >= 'TASK#' || :job || '_' AND entity < 'TASK#' || :job || '`'"


def statement(columns: str, filters: Mapping[str, Any], *, near_end: bool) -> str:
    """The rows behind a position to which everything applies that is not None.

    ``asked`` may have ``app``, ``type``, ``entity`` and ``job``; beside them ``tenant``, ``after``
    and ``limit`` are to be bound. Columns and conditions are our own literals.
    """
    given = {name for name, value in filters.items() if value is not None}
    same = "".join(f" AND {name} = :{name}" for name in ("app", "type", "entity") if name in given)
    where = f"{_AFTER_POSITION}{same}"
    if near_end:
        job = f" AND ({_JOB} OR ({_TASKS}))" if "job" in given else ""
        return f"SELECT {columns} FROM events NOT INDEXED WHERE {where}{job} {_PAGE}"
    if "job" in given:
        walk = f"SELECT position FROM {_BY_ENTITY} WHERE {where} AND"
        positions = f"SELECT position FROM ({walk} {_JOB} UNION ALL {walk} {_TASKS}) {_PAGE}"
        return f"SELECT {columns} FROM events WHERE position IN ({positions}) ORDER BY position"
    if "entity" in given:
        return f"SELECT {columns} FROM {_BY_ENTITY} WHERE {where} {_PAGE}"
    if "type" in given:
        return f"SELECT {columns} FROM {_BY_TYPE} WHERE {where} {_PAGE}"
    each = (f"SELECT {columns} FROM {_BY_TYPE} WHERE {where} AND type = '{t}'" for t in EVENT_TYPES)
    return f"{' UNION ALL '.join(each)} {_PAGE}"
