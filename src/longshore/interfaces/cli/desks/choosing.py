"""Which desk a command asks: a folder of this machine, or a server.

What stands on the command line wins: ``--server``, ``--context`` or ``--data-dir``. Then the
settings: ``url``, else a ``data_dir`` that somebody set. Then the context in use, if there is one;
and if nobody said anything, the folder ``.longshore`` here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from longshore.errors import UsageError
from longshore.interfaces.cli.desks import contexts
from longshore.interfaces.cli.desks.contexts import Context
from longshore.interfaces.cli.desks.desk import Desk
from longshore.interfaces.cli.desks.embedded import EmbeddedDesk
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.session import existing, loaded_for, opened
from longshore.settings import DEFAULT, LoadedSettings


@contextlib.asynccontextmanager
async def desk_for(here: Here, *, create: bool = False) -> AsyncIterator[Desk]:
    """The desk that a command line means.

    Args:
        create: whether a data folder that is not there is made.

    Raises:
        Missing: there is no data folder, and none is to be made.
        UsageError: two places are named, or one that cannot be.
    """
    loaded = loaded_for(here)
    if (context := server_of(here, loaded)) is not None:
        if here.tenant is not None:
            message = f"--tenant: {context.url} knows the tenant by the key; leave it out"
            raise UsageError(message)
        # Only those who need it pay for the import.
        from longshore.interfaces.cli.desks.remote import connected

        async with connected(context, loaded.settings) as remote:
            yield remote
        return
    settings = loaded.settings
    async with opened(settings) if create else existing(settings) as session:
        yield EmbeddedDesk(session)


def server_of(here: Here, loaded: LoadedSettings) -> Context | None:
    """The server that is meant; None for this machine's folder.

    Raises:
        UsageError: two places are named, or there is no such context.
    """
    named = {"--server": here.server, "--context": here.context, "--data-dir": here.data_dir}
    given = [option for option, value in named.items() if value is not None]
    if len(given) > 1:
        message = f"{' and '.join(given)} name different places; give one of them"
        raise UsageError(message)
    settings = loaded.settings
    if here.context is not None:
        return contexts.load(settings.contexts_file).named(here.context)
    if here.data_dir is not None:
        return None
    if settings.url is not None:
        return Context(url=contexts.checked_url(settings.url))
    if loaded.origins["data_dir"] != DEFAULT:
        return None
    return contexts.load(settings.contexts_file).current()
