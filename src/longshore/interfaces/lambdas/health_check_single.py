"""health-check-single: ``{"taskId": …}`` → how that task is; nobody else is told."""

from __future__ import annotations

from typing import Any

from longshore.core.ids import is_task_id
from longshore.errors import UsageError
from longshore.interfaces import views
from longshore.interfaces.lambdas.container import Container, Context
from longshore.services.following import row_of
from longshore.wiring.functions import Wired, wired

container = Container(wired)
_SHAPE = 'expected {"taskId": "job-…_name"}, with "tenantId" if it is not of the own tenant'


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Check one task by its global id."""
    task_id = event.get("taskId") if isinstance(event, dict) else None
    if not isinstance(task_id, str) or not is_task_id(task_id):
        raise UsageError(_SHAPE)

    async def check(wired: Wired) -> dict[str, Any]:
        tenant = event.get("tenantId") or wired.settings.tenant
        found = await wired.services.health_check.check_one(tenant, task_id)
        row = await row_of(wired.services.backend, task_id)
        return views.task_health_document(row, found)

    return container.run(check, context)
