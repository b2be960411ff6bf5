"""Settings → backend: which adapters are plugged in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longshore.adapters.system import SystemClock
from longshore.errors import ConfigurationError
from longshore.ports.backend import Backend
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.adapters.aws.client import AwsClient
    from longshore.adapters.aws.names import Names
    from longshore.adapters.sqlite.database import SqliteOptions


def open_backend(
    settings: Settings, sqlite: SqliteOptions | None = None
) -> AbstractAsyncContextManager[Backend]:
    """The backend that the settings name, closed at the end."""
    # Only the backend in use is imported: functions on AWS start sooner without the others.
    if settings.backend == "aws":
        return open_aws_backend(settings, aws_installation(settings))
    from longshore.adapters.sqlite.backend import sqlite_backend

    return sqlite_backend(settings.data_dir.absolute(), SystemClock(), sqlite)


@dataclass(frozen=True, slots=True)
class AwsInstallation:
    """A client of AWS, and the names of an installation's parts."""

    aws: AwsClient
    names: Names


@contextlib.contextmanager
def aws_extra() -> Iterator[None]:
    """Explains an import that fails because the extra ``aws`` is not installed.

    Raises:
        ConfigurationError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        problem = f"{error.name} is missing, which AWS needs: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error


def aws_client(settings: Settings, **limits: Any) -> AwsClient:
    """A client of AWS, with its default limits or these. Nothing is requested from AWS yet."""
    with aws_extra():
        from longshore.adapters.aws.client import AwsClient, AwsClientOptions
    aws = settings.aws
    return AwsClient(AwsClientOptions(region=aws.region, endpoint_url=aws.endpoint_url, **limits))


def aws_installation(settings: Settings) -> AwsInstallation:
    """The installation that the settings name. Nothing is requested from AWS yet.

    Raises:
        ConfigurationError: a setting is missing, or a package is.
    """
    if settings.aws.bucket is None:
        raise ConfigurationError(
            ["backend is aws and aws.bucket is not set: name the bucket of the installation"]
        )
    with aws_extra():
        from longshore.adapters.aws.names import Names
    names = Names(stage=settings.environment, bucket=settings.aws.bucket)
    return AwsInstallation(aws_client(settings), names)


def open_aws_backend(
    settings: Settings, installation: AwsInstallation
) -> AbstractAsyncContextManager[Backend]:
    """The backend on AWS; its client is closed at the end."""
    from longshore.adapters.aws.backend import aws_backend

    return aws_backend(
        *(installation.aws, installation.names, SystemClock()),
        shards=settings.aws.shards,
        other_events_retention=settings.retention.other_events or None,
        event_indexes=event_indexes(settings),
    )


@contextlib.asynccontextmanager
async def open_installation(settings: Settings) -> AsyncIterator[AwsInstallation]:
    """The installation that the settings name; its client is closed at the end.

    Raises:
        ConfigurationError: ``aws.bucket`` is not set, or the library for AWS is not installed.
    """
    installation = aws_installation(settings)
    try:
        yield installation
    finally:
        await installation.aws.close()


def event_indexes(settings: Settings) -> Set[int]:
    """The numbers of the event table's indexes that are filled."""
    from longshore.adapters.aws.events.event_log import ALL_INDEXES, DEFAULT_INDEXES

    return ALL_INDEXES if settings.aws.event_indexes == "all" else DEFAULT_INDEXES
