"""What a command works with: settings, logs and services, opened for as long as it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from longshore.interfaces.cli import log_records
from longshore.interfaces.cli.exits import Missing
from longshore.interfaces.cli.options import Here
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.crew import Crew
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.producer import Producer
from longshore.services.sweeper import Sweeper
from longshore.services.transitions import Transitions
from longshore.services.worker.worker import Worker
from longshore.settings import Settings, load

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Session(Protocol):
    """All services, as the wiring hands them out."""

    @property
    def settings(self) -> Settings: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def transitions(self) -> Transitions: ...
    @property
    def documents(self) -> Documents: ...
    @property
    def producer(self) -> Producer: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def sweeper(self) -> Sweeper: ...
    @property
    def presence(self) -> Presence: ...
    def worker(self, worker_id: str | None = None) -> Worker: ...


def settings_for(
    here: Here, flags: Mapping[str, Any] | None = None, *, talkative: bool = False
) -> Settings:
    """The settings that hold for a command, with the logs set up as they say.

    A command that answers a question is silent but for errors, unless ``-v`` is given; one that
    works on its own (``talkative``) logs what the settings say.
    """
    settings = load({**here.flags(), **(flags or {})}).settings
    usual = _LEVELS[settings.log_level] if talkative else logging.ERROR
    level = log_records.level_for(here.verbose, usual)
    log_records.set_up(level=level, style=settings.log_format)
    return settings


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Session]:
    """All services; the data folder is created if it is not there."""
    from longshore.wiring import wired

    async with wired(settings) as services:
        yield services


@contextlib.asynccontextmanager
async def existing(settings: Settings) -> AsyncIterator[Session]:
    """All services on a data folder that must be there: looking at something creates nothing.

    Raises:
        Missing: there is none.
    """
    from longshore.wiring import store_exists

    if not store_exists(settings):
        raise Missing(
            f"there is no data folder {str(settings.data_dir.absolute())!r} yet",
            "run something first (`longshore run -- echo hello`), or name the folder with"
            " --data-dir",
        )
    async with opened(settings) as session:
        yield session


def crew_of(session: Session) -> Crew:
    """A worker of this process, with all that it needs beside it."""
    return Crew(
        worker=session.worker(),
        dispatcher=session.dispatcher,
        sweeper=session.sweeper,
        presence=session.presence,
    )
