"""health-check: a schedule → history and people are told how everything is that runs."""

from __future__ import annotations

from typing import Any

from longshore.core.events.codec import properties_of_body
from longshore.core.health import HealthReport
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.wiring.lambdas import LambdaServices, open_services_with_secrets

container = Container(open_services_with_secrets)


def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Check everything of every tenant; what each check found."""
    reports = container.run(_check, context)
    summaries = {report.tenant: properties_of_body(report.event())["summary"] for report in reports}
    return {"tenants": summaries}


async def _check(wired: LambdaServices) -> list[HealthReport]:
    return await wired.health_check.check_all()
