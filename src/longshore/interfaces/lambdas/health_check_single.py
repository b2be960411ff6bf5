"""health-check-single: ``{"taskId": …}`` → how that task is; nobody else is told."""

from __future__ import annotations

from typing import Any

from longshore.core.ids import is_task_id
from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.services.app import Caller
from longshore.services.documents import to_dict
from longshore.wiring.lambdas import LambdaServices, open_lambda_services

container = Container(open_lambda_services)
_SHAPE = 'expected {"taskId": "job-…_name"}, with "tenantId" if it is not of the own tenant'


def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Check one task by its global id."""
    task_id = event.get("taskId") if isinstance(event, dict) else None
    if not isinstance(task_id, str) or not is_task_id(task_id):
        raise UsageError(_SHAPE)

    async def check(services: LambdaServices) -> dict[str, Any]:
        tenant = event.get("tenantId") or services.settings.tenant
        operations = services.application(Caller(tenant=tenant, name="health-check-single"))
        return to_dict(await operations.task_health(task_id))

    return container.run(check, context)
