"""Settings → backend: which adapters are plugged in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from longshore.adapters.memory.backend import memory_backend
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.system.clock import SystemClock
from longshore.errors import ConfigurationError
from longshore.ports.backend import Backend
from longshore.settings import Settings


@contextlib.asynccontextmanager
async def backend_of(settings: Settings) -> AsyncIterator[Backend]:
    """The backend that the settings name, closed at the end."""
    if settings.backend == "memory":
        yield memory_backend(SystemClock(), atomic=True)
        return
    if settings.backend == "aws":
        async with _aws(settings) as backend:
            yield backend
        return
    options = SqliteOptions(
        busy_timeout=settings.sqlite.busy_timeout,
        group_limit=settings.sqlite.group_limit,
        wal_pages=settings.sqlite.wal_autocheckpoint,
        slow_poll=settings.sqlite.slow_poll,
    )
    folder = settings.data_dir.absolute()
    async with sqlite_backend(folder, SystemClock(), options) as backend:
        yield backend


@contextlib.asynccontextmanager
async def _aws(settings: Settings) -> AsyncIterator[Backend]:
    if settings.aws.bucket is None:
        raise ConfigurationError(
            ["backend is aws and aws.bucket is not set: name the bucket of the installation"]
        )
    try:
        # Not everybody who uses Longshore has it installed.
        from longshore.adapters.aws import backend as on_aws
        from longshore.adapters.aws.calls import Aws, AwsPlace
        from longshore.adapters.aws.names import Names
    except ModuleNotFoundError as error:
        problem = f"backend is aws and {error.name} is missing: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error
    place = AwsPlace(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        tries=settings.aws.tries,
    )
    options = on_aws.AwsOptions(
        shards=settings.aws.shards,
        keeps_events=settings.aws.keep_events or None,
        keeps_output=settings.aws.keep_output or None,
    )
    names = Names(stage=settings.environment, bucket=settings.aws.bucket)
    async with on_aws.aws_backend(Aws(place), names, SystemClock(), options) as backend:
        yield backend
