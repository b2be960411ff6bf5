"""The settings, the logging and the services of a command."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from longshore.errors import BackendUnavailable
from longshore.interfaces.cli.exit_codes import MissingResource
from longshore.interfaces.cli.log_records import configure_logging, level_for
from longshore.settings import LoadedSettings, Settings, load

if TYPE_CHECKING:
    from longshore.interfaces.cli.options import GlobalOptions
    from longshore.wiring.services import Services


def settings_for(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> Settings:
    """The settings of a command; also configures logging.

    Args:
        flags: Settings that the command line overrides, by name.
        long_running: Log what the settings say. Other commands log errors only, without ``-v``.
    """
    return loaded_settings_for(options, flags, long_running=long_running).settings


def loaded_settings_for(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> LoadedSettings:
    """Like ``settings_for``, with the origin of each setting."""
    loaded = load({**options.flags(), **(flags or {})})
    settings = loaded.settings
    levels = logging.getLevelNamesMapping()
    default = levels[settings.log_level.upper()] if long_running else logging.ERROR
    configure_logging(level=level_for(options.verbose, default), style=settings.log_format)
    return loaded


@contextlib.asynccontextmanager
async def open_command_services(
    settings: Settings, *, create: bool = True
) -> AsyncIterator[Services]:
    """The services of a data folder.

    Args:
        create: Create the data folder if it does not exist.

    Raises:
        MissingResource: there is no data folder, and ``create`` is False.
        BackendUnavailable: the data folder cannot be used.
    """
    from longshore.wiring.services import open_services, store_exists

    folder = str(settings.data_dir.absolute())
    if not create and not store_exists(settings):
        raise MissingResource(
            f"there is no data folder {folder!r} yet",
            "run something first (`longshore run -- echo hello`), or choose a folder with"
            " --data-dir",
        )
    async with contextlib.AsyncExitStack() as stack:
        try:
            services = await stack.enter_async_context(open_services(settings))
        except OSError as error:
            message = f"the data folder {folder!r} cannot be used: {error.strerror}; see --data-dir"
            raise BackendUnavailable(message) from error
        yield services
