"""The settings, the logging and the services of a command."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from longshore.interfaces.cli.exit_codes import MissingResource
from longshore.interfaces.cli.log_records import configure_logging

if TYPE_CHECKING:
    from longshore.interfaces.cli.options import GlobalOptions
    from longshore.settings import LoadedSettings, Settings
    from longshore.wiring.services import Services


def load_command_settings(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> LoadedSettings:
    """The settings of a command and their origins; also configures logging.

    Args:
        flags: Settings that the command line overrides, by name.
        long_running: Log what the settings say. Other commands log errors only, without ``-v``.
    """
    from longshore.settings import load  # help is printed without it

    own = {"data_dir": options.data_dir, "url": options.server, "tenant": options.tenant}
    loaded = load({**own, **(flags or {})})
    level = logging.ERROR
    if long_running:
        level = logging.getLevelNamesMapping()[loaded.settings.log_level.upper()]
    if options.verbose:
        level = min(level, logging.INFO) if options.verbose == 1 else logging.DEBUG
    configure_logging(level=level, style=loaded.settings.log_format)
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

    if not create and not store_exists(settings):
        raise MissingResource(
            f"there is no data folder {str(settings.data_dir.absolute())!r} yet",
            "run something first (`longshore run -- echo hello`), or choose a folder with"
            " --data-dir",
        )
    async with open_services(settings) as services:
        yield services
