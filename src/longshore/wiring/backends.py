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
    from longshore.adapters.aws.calls import Aws
    from longshore.adapters.aws.names import Names


@contextlib.asynccontextmanager
async def backend_of(settings: Settings) -> AsyncIterator[Backend]:
    """The backend that the settings name, closed at the end."""
    # Each is loaded where it is used: functions on AWS start the sooner without the others.
    if settings.backend == "memory":
        from longshore.adapters.memory.backend import memory_backend

        yield memory_backend(SystemClock(), atomic=True)
        return
    if settings.backend == "aws":
        async with aws_backend_in(settings, aws_house(settings)) as backend:
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
class AwsHouse:
    """The way to AWS, and what an installation's parts are called there."""

    aws: Aws
    names: Names


def aws_house(settings: Settings) -> AwsHouse:
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
    names = Names(stage=settings.environment, bucket=settings.aws.bucket)
    return AwsHouse(Aws(place), names)


@contextlib.asynccontextmanager
async def aws_backend_in(settings: Settings, house: AwsHouse) -> AsyncIterator[Backend]:
    """Every port on AWS; the way there is closed at the end."""
    from longshore.adapters.aws import backend as on_aws

    options = on_aws.AwsOptions(
        shards=settings.aws.shards,
        keeps_events=settings.aws.keep_events or None,
        keeps_output=settings.aws.keep_output or None,
        event_indexes=event_indexes(settings),
    )
    clock = SystemClock()
    async with on_aws.aws_backend(house.aws, house.names, clock, options) as backend:
        yield backend


def event_indexes(settings: Settings) -> Set[int]:
    """The numbers of the event table's indexes that are filled."""
    from longshore.adapters.aws.event_walks import ALL, FEW

    return ALL if settings.aws.event_indexes == "all" else FEW
