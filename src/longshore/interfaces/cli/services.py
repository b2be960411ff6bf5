"""What a command works with: settings, logs and services, opened for as long as it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from longshore.errors import BackendUnavailable
from longshore.interfaces.cli import log_records
from longshore.interfaces.cli.exit_codes import MissingResource
from longshore.interfaces.cli.options import GlobalOptions
from longshore.settings import LoadedSettings, Settings, load

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def settings_for(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> Settings:
    """The settings that hold for a command, with the logs set up as they say.

    A command that answers a question is silent but for errors, unless ``-v`` is given; one that
    works on its own (``talkative``) logs what the settings say.
    """
    return loaded_settings_for(options, flags, long_running=long_running).settings


def loaded_settings_for(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> LoadedSettings:
    """Likewise, with where each of them came from."""
    loaded = load({**options.flags(), **(flags or {})})
    settings = loaded.settings
    usual = _LEVELS[settings.log_level] if long_running else logging.ERROR
    level = log_records.level_for(options.verbose, usual)
    log_records.configure_logging(level=level, style=settings.log_format)
    return loaded


@contextlib.asynccontextmanager
async def open_command_services(settings: Settings) -> AsyncIterator[Services]:
    """All services; the data folder is created if it is not there."""
    from longshore.wiring.services import open_services

    async with contextlib.AsyncExitStack() as stack:
        try:
            services = await stack.enter_async_context(open_services(settings))
        except OSError as error:
            folder = str(settings.data_dir.absolute())
            message = f"the data folder {folder!r} cannot be used: {error.strerror}; see --data-dir"
            raise BackendUnavailable(message) from error
        yield services


@contextlib.asynccontextmanager
async def open_existing_command_services(settings: Settings) -> AsyncIterator[Services]:
    """All services on a data folder that must be there: looking at something creates nothing.

    Raises:
        Missing: there is none.
    """
    from longshore.wiring.services import store_exists

    if not store_exists(settings):
        raise MissingResource(
            f"there is no data folder {str(settings.data_dir.absolute())!r} yet",
            "run something first (`longshore run -- echo hello`), or name the folder with"
            " --data-dir",
        )
    async with open_command_services(settings) as session:
        yield session
