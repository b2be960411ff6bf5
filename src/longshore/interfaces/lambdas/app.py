"""The REST API as the function ``api`` serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from longshore.interfaces.lambdas.api_gateway import AsgiApp
from longshore.interfaces.rest.app import create_app
from longshore.wiring.lambdas import open_services_with_secrets


@contextlib.asynccontextmanager
async def open_app() -> AsyncIterator[AsgiApp]:
    """The app, on the installation that the environment names."""
    async with open_services_with_secrets() as services:
        api = services.settings.api
        # A function has no machine key, which elsewhere names the tenant of the operators.
        services.api_keys.set_operator_tenant(services.settings.tenant)
        yield create_app(services, hosts=api.hosts, body_bytes=api.body_bytes)
