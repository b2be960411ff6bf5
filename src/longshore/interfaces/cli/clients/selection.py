"""Which client a command uses: of a data folder of this machine, or of a server.

The command line decides first: ``--server``, ``--context`` or ``--data-dir``. Then the settings:
``url``, or a ``data_dir`` that is set. Then the current context, if there is one; otherwise the
folder ``.longshore`` in the working directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from longshore.errors import ConfigurationError, UsageError
from longshore.interfaces.cli.clients import contexts
from longshore.interfaces.cli.clients.api_client import ApiClient
from longshore.interfaces.cli.clients.contexts import ServerContext, is_loopback
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.services import (
    loaded_settings_for,
    open_command_services,
    open_existing_command_services,
)
from longshore.settings import DEFAULT, LoadedSettings, Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services


@contextlib.asynccontextmanager
async def open_client(options: GlobalOptions, *, create: bool = False) -> AsyncIterator[ApiClient]:
    """The client that the options name.

    Args:
        create: whether a data folder that does not exist is created.

    Raises:
        MissingResource: there is no data folder, and none is created.
        UsageError: the options name two of them, or one that is not valid.
    """
    loaded = loaded_settings_for(options)
    if (context := selected_server(options, loaded)) is not None:
        if options.tenant is not None:
            message = f"--tenant: {context.url} knows the tenant by the key; leave it out"
            raise UsageError(message)
        async with open_server_client(context, loaded.settings) as client:
            yield client
        return
    settings = loaded.settings
    async with (
        open_command_services(settings)
        if create
        else open_existing_command_services(settings) as services
    ):
        yield local_client(services)


def local_client(services: Services) -> ApiClient:
    """The client of a data folder."""
    scope = f"of tenant {services.settings.tenant!r}"
    return ApiClient(services.application(), scope, services.backend.clock.now, services)


@contextlib.asynccontextmanager
async def open_server_client(
    context: ServerContext, settings: Settings
) -> AsyncIterator[ApiClient]:
    """The client of a server.

    Raises:
        ConfigurationError: there is no key for it, or the key would be sent unencrypted.
    """
    # Commands on a data folder do not need it.
    from longshore.interfaces.client.http_client import open_http_client
    from longshore.wiring.services import system_clock

    async with open_http_client(
        context.url,
        _key_for(context, settings),
        user_agent="longshore-cli",
        # Requests to this machine itself use no proxy.
        trust_env=not is_loopback(context.url),
    ) as client:
        yield ApiClient(client, f"at {context.url}", system_clock().now)


def _key_for(context: ServerContext, settings: Settings) -> str:
    near = is_loopback(context.url)
    if not near and not context.insecure and context.url.startswith("http:"):
        problem = (
            f"{context.url}: the key would cross the network in the clear; use https, or "
            "`longshore contexts add --insecure` if that network is yours alone"
        )
        raise ConfigurationError([problem])
    if context.key is not None:
        return context.key
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    from longshore.wiring.services import read_machine_key

    # The key that this machine created for itself is for this machine alone.
    if near and (own := read_machine_key(settings)) is not None:
        return own
    folder = str(settings.data_dir.absolute())
    hint = f", or --data-dir names the folder of a server here (not {folder!r})" if near else ""
    problem = (
        f"there is no key to {context.url}: set LONGSHORE_API_KEY, or remember one with "
        f"`longshore contexts add`{hint}"
    )
    raise ConfigurationError([problem])


def selected_server(options: GlobalOptions, loaded: LoadedSettings) -> ServerContext | None:
    """The server that the options name; None: a data folder.

    Raises:
        UsageError: the options name two of them, or there is no such context.
    """
    named = {
        "--server": options.server,
        "--context": options.context,
        "--data-dir": options.data_dir,
    }
    used = [option for option, value in named.items() if value is not None]
    if len(used) > 1:
        message = f"{' and '.join(used)} name different places; give one of them"
        raise UsageError(message)
    settings = loaded.settings
    if options.context is not None:
        return contexts.load(settings.contexts_file).get(options.context)
    if options.data_dir is not None:
        return None
    if settings.url is not None:
        return ServerContext(url=contexts.validate_url(settings.url))
    if loaded.origins["data_dir"] != DEFAULT:
        return None
    return contexts.load(settings.contexts_file).current()
