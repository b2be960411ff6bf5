"""The index keys of an event: by whom and by what it can be found.

Whoever tells of an event computes all of its keys, so that storing it is a plain write and every
question (this task, this app, this type of event …) is a range of one index. The entity's prefix
is its type, so one table serves tasks, jobs and all else that events are about.

Within the keys of indexes 1 to 3 there is no tenant: who reads by them must look at ``tenantId``.
"""

from __future__ import annotations

from longshore.core.events.event import Event
from longshore.core.events.kinds import ms_of


def index_keys(event: Event) -> dict[str, str]:
    """The primary key and the keys of the seven indexes."""
    at = f"TIMESTAMP#{ms_of(event.at)}"
    tenant = f"TENANT#{event.tenant}"
    app = f"APP#{event.app}"
    kind = f"EVENT#{event.type}"
    entity = event.entity
    return {
        "PK": tenant,
        "SK": f"{at}#EVENT#{event.id}",
        "GSI1PK": entity,
        "GSI1SK": f"{event.entity_type.value}#{at}",
        "GSI2PK": app,
        "GSI2SK": at,
        "GSI3PK": app,
        "GSI3SK": f"{entity}#{at}",
        "GSI4PK": kind,
        "GSI4SK": f"{tenant}#{at}",
        "GSI5PK": kind,
        "GSI5SK": f"{tenant}#{entity}#{at}",
        "GSI6PK": kind,
        "GSI6SK": f"{tenant}#{app}#{at}",
        "GSI7PK": kind,
        "GSI7SK": f"{tenant}#{app}#{entity}#{at}",
    }
