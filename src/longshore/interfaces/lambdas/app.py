"""The REST API as the function ``api`` serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from longshore.interfaces.lambdas.gateway import App
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.desk import Desk
from longshore.wiring.functions import Wired, telling_people


@contextlib.asynccontextmanager
async def opened_app() -> AsyncIterator[App]:
    """The app, on the installation that the environment names."""
    async with telling_people() as wired:
        api = wired.settings.api
        # No machine has a key of its own here, to say who runs the installation.
        wired.services.access.belongs_to(wired.settings.tenant)
        yield create_app(_desk(wired), hosts=api.hosts, body_bytes=api.body_bytes)


def _desk(wired: Wired) -> Desk:
    services = wired.services
    return Desk(
        backend=services.backend,
        documents=services.documents,
        producer=services.producer,
        adding=services.adding,
        cancelling=services.cancelling,
        resuming=services.resuming,
        reviewing=services.reviewing,
        budgeting=services.budgeting,
        explaining=services.explaining,
        dead_letters=services.dead_letters,
        health_check=services.health_check,
        access=services.access,
        environment=wired.settings.environment,
        events_ttl_days=wired.settings.aws.keep_events.days,
    )
