"""Settings → backend: which adapters are plugged in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longshore.adapters.system.clock import SystemClock
from longshore.errors import ConfigurationError
from longshore.ports.backend import Backend
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.adapters.aws.client import AwsClient
    from longshore.adapters.aws.names import Names


@contextlib.asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[Backend]:
    """The backend that the settings name, closed at the end."""
    # Each is loaded where it is used: functions on AWS start the sooner without the others.
    if settings.backend == "memory":
        from longshore.adapters.memory.backend import memory_backend

        yield memory_backend(SystemClock(), atomic=True)
        return
    if settings.backend == "aws":
        async with open_aws_backend(settings, aws_installation(settings)) as backend:
            yield backend
        return
    from longshore.adapters.sqlite.backend import sqlite_backend
    from longshore.adapters.sqlite.database import SqliteOptions

    options = SqliteOptions(
        busy_timeout=settings.sqlite.busy_timeout,
        group_limit=settings.sqlite.group_limit,
        wal_pages=settings.sqlite.wal_autocheckpoint,
        slow_poll=settings.sqlite.slow_poll,
    )
    folder = settings.data_dir.absolute()
    async with sqlite_backend(folder, SystemClock(), options) as backend:
        yield backend


@dataclass(frozen=True, slots=True)
class AwsInstallation:
    """The way to AWS, and what an installation's parts are called there."""

    aws: AwsClient
    names: Names


def aws_installation(settings: Settings) -> AwsInstallation:
    """Of the installation that the settings name; nothing is asked of AWS yet.

    Raises:
        ConfigurationError: a setting is missing, or a package is.
    """
    if settings.aws.bucket is None:
        raise ConfigurationError(
            ["backend is aws and aws.bucket is not set: name the bucket of the installation"]
        )
    try:
        # Not everybody who uses Longshore has it installed.
        from longshore.adapters.aws.client import AwsClient, AwsClientOptions
        from longshore.adapters.aws.names import Names
    except ModuleNotFoundError as error:
        problem = f"backend is aws and {error.name} is missing: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error
    place = AwsClientOptions(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        max_attempts=settings.aws.tries,
    )
    names = Names(stage=settings.environment, bucket=settings.aws.bucket)
    return AwsInstallation(AwsClient(place), names)


@contextlib.asynccontextmanager
async def open_aws_backend(
    settings: Settings, installation: AwsInstallation
) -> AsyncIterator[Backend]:
    """Every port on AWS; the way there is closed at the end."""
    from longshore.adapters.aws import backend as on_aws

    options = on_aws.AwsBackendOptions(
        shards=settings.aws.shards,
        events_retention=settings.aws.keep_events or None,
        output_retention=settings.aws.keep_output or None,
        event_indexes=event_indexes(settings),
    )
    clock = SystemClock()
    async with on_aws.aws_backend(installation.aws, installation.names, clock, options) as backend:
        yield backend


def event_indexes(settings: Settings) -> Set[int]:
    """The numbers of the event table's indexes that are filled."""
    from longshore.adapters.aws.events.event_log import ALL_INDEXES, DEFAULT_INDEXES

    return ALL_INDEXES if settings.aws.event_indexes == "all" else DEFAULT_INDEXES
