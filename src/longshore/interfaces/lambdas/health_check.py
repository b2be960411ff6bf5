"""health-check: a schedule → history and people are told how everything is that runs."""

from __future__ import annotations

from typing import Any

from longshore.core.health import HealthReport
from longshore.interfaces import views
from longshore.interfaces.lambdas.container import Container, Context
from longshore.wiring.functions import Wired, telling_people

container = Container(telling_people)


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Check everything of every tenant; what each check found."""
    reports = container.run(_check, context)
    found = {one.tenant: views.health_check_document(one.event(), one.at) for one in reports}
    return {"tenants": {tenant: document["summary"] for tenant, document in found.items()}}


async def _check(wired: Wired) -> list[HealthReport]:
    return await wired.services.health_check.check_all()
