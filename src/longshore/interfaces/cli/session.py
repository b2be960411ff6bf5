"""What a command works with: settings, logs and services, opened for as long as it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshore.errors import BackendUnavailable
from longshore.interfaces.cli import log_records
from longshore.interfaces.cli.exits import Missing
from longshore.interfaces.cli.options import Here
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.access import Access
from longshore.services.adding import Adding
from longshore.services.budgeting import Budgeting
from longshore.services.cancelling import Cancelling
from longshore.services.crew import Crew
from longshore.services.dead_letters import DeadLetters
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.explaining import Explaining
from longshore.services.health_check import HealthCheck
from longshore.services.pausing import Pausing
from longshore.services.producer import Producer
from longshore.services.resuming import Resuming
from longshore.services.reviewing import Reviewing
from longshore.services.sweeper import Sweeper
from longshore.services.transitions import Transitions
from longshore.services.worker.worker import Worker
from longshore.settings import LoadedSettings, Settings, load

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All services, as the wiring hands them out."""

    settings: Settings
    backend: Backend
    transitions: Transitions
    documents: Documents
    producer: Producer
    dispatcher: Dispatcher
    sweeper: Sweeper
    dead_letters: DeadLetters
    presence: Presence
    adding: Adding
    cancelling: Cancelling
    resuming: Resuming
    reviewing: Reviewing
    budgeting: Budgeting
    explaining: Explaining
    pausing: Pausing
    access: Access
    health_check: HealthCheck
    own_key: Callable[[], Awaitable[Path]]
    new_worker: Callable[[Settings], Worker]

    def crew(self, queues: tuple[str, ...] | None = None) -> Crew:
        """A worker of this process, with all that it needs beside it."""
        settings = self.settings
        if queues is not None:
            worker = settings.worker.model_copy(update={"queues": queues})
            settings = settings.model_copy(update={"worker": worker})
        return Crew(
            worker=self.new_worker(settings),
            dispatcher=self.dispatcher if settings.works_alone else None,
            sweeper=self.sweeper,
            presence=self.presence,
        )


def settings_for(
    here: Here, flags: Mapping[str, Any] | None = None, *, talkative: bool = False
) -> Settings:
    """The settings that hold for a command, with the logs set up as they say.

    A command that answers a question is silent but for errors, unless ``-v`` is given; one that
    works on its own (``talkative``) logs what the settings say.
    """
    return loaded_for(here, flags, talkative=talkative).settings


def loaded_for(
    here: Here, flags: Mapping[str, Any] | None = None, *, talkative: bool = False
) -> LoadedSettings:
    """Likewise, with where each of them came from."""
    loaded = load({**here.flags(), **(flags or {})})
    settings = loaded.settings
    usual = _LEVELS[settings.log_level] if talkative else logging.ERROR
    level = log_records.level_for(here.verbose, usual)
    log_records.set_up(level=level, style=settings.log_format)
    return loaded


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Session]:
    """All services; the data folder is created if it is not there."""
    from longshore.wiring import own_key, wired

    async with contextlib.AsyncExitStack() as stack:
        try:
            services = await stack.enter_async_context(wired(settings))
        except OSError as error:
            place = str(settings.data_dir.absolute())
            message = f"the data folder {place!r} cannot be used: {error.strerror}; see --data-dir"
            raise BackendUnavailable(message) from error
        yield Session(
            settings=settings,
            backend=services.backend,
            transitions=services.transitions,
            documents=services.documents,
            producer=services.producer,
            dispatcher=services.dispatcher,
            sweeper=services.sweeper,
            dead_letters=services.dead_letters,
            presence=services.presence,
            adding=services.adding,
            cancelling=services.cancelling,
            resuming=services.resuming,
            reviewing=services.reviewing,
            budgeting=services.budgeting,
            explaining=services.explaining,
            pausing=services.pausing,
            access=services.access,
            health_check=services.health_check,
            own_key=lambda: own_key(services),
            new_worker=lambda given: replace(services, settings=given).worker(),
        )


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
