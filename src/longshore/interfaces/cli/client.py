"""The client of a command: the operations of a data folder on this machine or of a server.

The command line decides which one: ``--server``, ``--context`` or ``--data-dir``. Then the settings
decide: ``url``, or a ``data_dir`` that is set. Then the current context, if there is one; otherwise
the folder ``.longshore`` in the working directory.

Jobs and tasks are named by their ids or by a unique prefix: ``job-k3x`` and ``k3x`` name the one
job whose id begins so, ``job-k3x_fetch`` names a task of that job.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from longshore.core.ids import ID_DIGITS, JOB_PREFIX, split_task_id
from longshore.errors import ConfigurationError, UsageError
from longshore.interfaces.cli import contexts
from longshore.interfaces.cli.contexts import ServerContext, is_loopback
from longshore.interfaces.cli.exit_codes import MissingResource
from longshore.interfaces.cli.log_records import configure_logging
from longshore.interfaces.cli.options import GlobalOptions, command
from longshore.interfaces.cli.render import formats

if TYPE_CHECKING:
    from longshore.core.dead_letters import DeadLetterFilter
    from longshore.interfaces.client.http_client import HttpClient
    from longshore.services import documents as d
    from longshore.services.app import Application
    from longshore.services.worker.group import WorkerGroup
    from longshore.settings import LoadedSettings, Settings
    from longshore.wiring.services import Services

MAX_IDS = 200
_PAGE_SIZE = 1_000
_OUTPUT_PAGE_SIZE = 200
_ALL = 1_000_000
_JOB_ID_LENGTH = 28
_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class EntityRef:
    """A job, or a task of a job."""

    job_id: str
    task_id: str | None = None

    @property
    def id(self) -> str:
        """The id of the task, or of the job if no task is named."""
        return self.task_id or self.job_id


@dataclass(frozen=True, slots=True)
class ApiClient:
    """The operations that commands use."""

    options: GlobalOptions
    app: Application | HttpClient
    scope: str  # where jobs are looked up, for messages
    now: Callable[[], datetime]  # the current time, to show ages
    services: Services | None = None  # of the data folder; None: ``app`` is the client of a server

    def ago(self, moment: str | None) -> str:
        """A timestamp of a document relative to now; nothing for None."""
        return formats.relative_time(moment, self.now())

    async def resolve(self, text: str) -> EntityRef:
        """The job or task that a text names.

        Raises:
            MissingResource: there is none.
            UsageError: there are several; the message lists them.
        """
        prefix, _, key = text.partition("_")
        jobs: list[str] = []
        for guess in (prefix.lower(), f"{JOB_PREFIX}{prefix.lower()}"):
            begin = JOB_PREFIX if JOB_PREFIX.startswith(guess) else guess
            jobs = jobs or await self._job_ids(begin)
        missing = MissingResource(
            f"no job or task {self.scope} begins with {text!r}", "`longshore jobs` lists all jobs"
        )
        if not jobs:
            raise missing
        if len(jobs) > 1:
            raise _ambiguous(text, jobs)
        if "_" not in text:
            return EntityRef(jobs[0])
        tasks = await self._find_ids(f"{jobs[0]}_{key}")
        if not tasks:
            raise missing
        if len(tasks) > 1 and tasks[0] != f"{jobs[0]}_{key}":
            raise _ambiguous(text, tasks)
        return EntityRef(jobs[0], tasks[0])

    async def _find_ids(self, prefix: str) -> list[str]:
        return (await self.app.find_ids(prefix, limit=MAX_IDS)).ids

    async def _job_ids(self, prefix: str) -> list[str]:
        """The ids of jobs with this prefix: all of them, or at least two."""
        ids = await self._find_ids(prefix)
        jobs = list(dict.fromkeys(split_task_id(id_)[0] for id_ in ids))
        if len(jobs) > 1 or len(ids) < MAX_IDS or len(prefix) >= _JOB_ID_LENGTH:
            return jobs
        # The many tasks of one job fill the answer: search digit by digit for other jobs.
        return [job for digit in ID_DIGITS for job in await self._job_ids(prefix + digit)]

    async def resolve_task(self, text: str) -> str:
        """The id of the task that a text names.

        Raises:
            MissingResource: there is none.
            UsageError: there are several, or the text names a job.
        """
        ref = await self.resolve(text)
        if ref.task_id is None:
            raise UsageError(f"{text!r} is a job: name one of its tasks, such as {ref.job_id}_…")
        return ref.task_id

    async def get_job(self, job_id: str) -> d.JobDetailDocument:
        """A job with all its tasks."""
        return await self.app.get_job(job_id, limit=_ALL)

    async def list_all_dead_letters(
        self, dead_filter: DeadLetterFilter
    ) -> list[d.DeadLetterDocument]:
        """All dead letters that match, the latest first."""
        return (await self.app.list_dead_letters(dead_filter, limit=_ALL)).dead_letters

    async def task_keys(self, job_id: str) -> list[str]:
        """The keys of a job's tasks."""
        return list((await self.app.task_statuses(job_id)).statuses)

    async def events(
        self, ref: EntityRef, *, include_tasks: bool, follow: bool
    ) -> AsyncIterator[d.EventDocument]:
        """The events of a job or task; with ``include_tasks`` those of a job's tasks too."""
        from longshore.services.documents import EventDocument

        app, task_id = self.app, ref.task_id
        if follow:
            stream = await (
                app.follow_task_events(task_id)
                if task_id
                else app.follow_job_events(ref.job_id, tasks=include_tasks)
            )
            async for item in stream:
                if isinstance(item.data, EventDocument):
                    yield item.data
        elif task_id is None:
            cursor: str | None = ""
            while cursor is not None:
                page = await app.list_job_events(
                    ref.job_id, tasks=include_tasks, limit=_PAGE_SIZE, cursor=cursor
                )
                for event in page.events:
                    yield event
                cursor = page.cursor
        else:
            after = 0
            while events := (
                await app.list_task_events(task_id, after=after, limit=_PAGE_SIZE)
            ).events:
                for event in events:
                    yield event
                after = events[-1].sequence

    async def output(
        self, ref: EntityRef, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[d.OutputChunkDocument]:
        """The output of a job or task."""
        from longshore.services.documents import OutputChunkDocument

        if ref.task_id is not None and not follow:
            after = "0.0"
            while chunks := (
                await self.app.read_output(
                    ref.task_id, attempt=attempt, after=after, limit=_OUTPUT_PAGE_SIZE
                )
            ).output:
                for chunk in chunks:
                    yield chunk
                after = chunks[-1].id
            return
        stream = (
            await self.app.follow_job_output(ref.job_id, follow=follow, attempt=attempt)
            if ref.task_id is None
            else await self.app.follow_task_output(ref.task_id, attempt=attempt)
        )
        async for item in stream:
            if isinstance(item.data, OutputChunkDocument):
                yield item.data

    # Workers of this machine --------------------------------------------------------------------

    def worker_group(self, queues: tuple[str, ...]) -> WorkerGroup | None:
        """A worker for these queues in this process; None: other workers serve them."""
        # Other workers may have settings that this process lacks, such as an agent's credentials.
        if self.services is None or self.worker_command(queues) is None:
            return None
        return self.services.worker_group(queues)

    def worker_command(self, queues: Sequence[str]) -> str | None:
        """The command that starts a worker for these queues, or any, if there is none."""
        if self.services is None:
            return None  # the operator of the server starts workers
        live = self.services.worker_registry.live_workers().values()
        served = {queue for served_queues in live for queue in served_queues}
        missing = [queue for queue in queues if queue not in served]
        if not missing and (queues or served):
            return None
        named = "".join(f" --queue {queue}" for queue in missing)
        by_default = set(missing) <= set(self.services.settings.worker.queues)
        return f"longshore worker --burst{'' if by_default else named}"


def _ambiguous(text: str, candidates: list[str]) -> UsageError:
    return UsageError(f"{text!r} is ambiguous; add a letter or two:{id_lines(candidates)}")


def id_lines(ids: Sequence[str]) -> str:
    """The first ids below each other, for a message that ends with them."""
    more = "\n  …" if len(ids) > _MAX_SHOWN else ""
    return "".join(f"\n  {id_}" for id_ in ids[:_MAX_SHOWN]) + more


def client_command(
    *examples: tuple[str, str], output: bool = True, create: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], Any]:
    """Make a command of an async function whose first argument is the ``ApiClient``.

    Args:
        examples: Command lines and what they do.
        output: Whether the command accepts ``-o``.
        create: Whether a data folder that does not exist is created.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, int | None]]) -> Any:
        @functools.wraps(function)
        async def run(options: GlobalOptions, **values: Any) -> int | None:
            async with open_client(options, create=create) as client:
                return await function(client, **values)

        return command(*examples, output=output, remote=True)(run)

    return decorate


# Data folder or server --------------------------------------------------------------------------


def load_command_settings(
    options: GlobalOptions, flags: Mapping[str, Any] | None = None, *, long_running: bool = False
) -> LoadedSettings:
    """The settings of a command and their origins; also configures logging.

    Args:
        flags: Settings that the command line overrides, by name.
        long_running: Log what the settings say, and hide this process's memory from tasks. Other
            commands log errors only, without ``-v``.
    """
    from longshore.settings import load  # help is printed without it

    own = {"data_dir": options.data_dir, "url": options.server, "tenant": options.tenant}
    loaded = load({**own, **(flags or {})})
    level = logging.ERROR
    if long_running:
        from longshore.wiring.services import hide_memory, return_large_memory

        hide_memory()
        return_large_memory()
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
    from longshore.wiring.services import open_services, raise_open_files_limit, store_exists

    if not create and not store_exists(settings):
        raise MissingResource(
            f"there is no data folder {str(settings.data_dir.absolute())!r} yet",
            "run something first (`longshore run -- echo hello`), or choose a folder with"
            " --data-dir",
        )
    raise_open_files_limit()
    async with open_services(settings) as services:
        yield services


@contextlib.asynccontextmanager
async def open_client(options: GlobalOptions, *, create: bool = False) -> AsyncIterator[ApiClient]:
    """The client that the options name.

    Args:
        create: whether a data folder that does not exist is created.

    Raises:
        MissingResource: there is no data folder, and none is created.
        UsageError: the options name two of them, or one that is not valid.
    """
    from longshore.wiring.services import system_clock

    loaded = load_command_settings(options)
    if (context := selected_server(options, loaded)) is None:
        async with open_command_services(loaded.settings, create=create) as services:
            scope = f"of tenant {loaded.settings.tenant!r}"
            app = services.application()
            yield ApiClient(options, app, scope, system_clock().now, services)
        return
    if options.tenant is not None:
        raise UsageError(f"--tenant: the key to {context.url} determines the tenant; leave it out")
    async with open_server(context, loaded.settings) as server:
        yield ApiClient(options, server, f"at {context.url}", system_clock().now)


def open_server(
    context: ServerContext, settings: Settings
) -> contextlib.AbstractAsyncContextManager[HttpClient]:
    """The client of a server.

    Raises:
        ConfigurationError: there is no key for it, or the key would be sent unencrypted.
    """
    from longshore.interfaces.client.http_client import open_http_client

    return open_http_client(
        context.url,
        _key_for(context, settings),
        user_agent="longshore-cli",
        # Requests to this machine itself use no proxy.
        trust_env=not is_loopback(context.url),
    )


def _key_for(context: ServerContext, settings: Settings) -> str:
    from longshore.wiring.services import read_machine_key

    local = is_loopback(context.url)
    key = context.key
    if key is None and settings.api_key is not None:
        key = settings.api_key.get_secret_value()
    # The key that this machine created for itself is for this machine alone.
    if key is None and local:
        key = read_machine_key(settings)
    if key is None:
        hint = "; if it runs on this machine, use --data-dir with its data folder instead"
        problem = (
            f"there is no API key for {context.url}: set LONGSHORE_API_KEY, or store one with "
            f"`longshore contexts add`{hint if local else ''}"
        )
        raise ConfigurationError([problem])
    if not local and not context.insecure and context.url.startswith("http:"):
        problem = (
            f"{context.url}: the key would cross the network in the clear; use https, or "
            "`longshore contexts add --insecure` if you trust that network"
        )
        raise ConfigurationError([problem])
    return key


def selected_server(options: GlobalOptions, loaded: LoadedSettings) -> ServerContext | None:
    """The server that the options name; None: a data folder.

    Raises:
        UsageError: the options name two of them, or there is no such context.
    """
    from longshore.settings import DEFAULT

    named = {
        "--server": options.server,
        "--context": options.context,
        "--data-dir": options.data_dir,
    }
    used = [option for option, value in named.items() if value is not None]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)} contradict each other; use one of them")
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
