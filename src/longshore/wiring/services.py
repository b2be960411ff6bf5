"""Builds services: settings → backend (``backends``) → services → application."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from longshore.adapters.system import (
    SystemClock,
    ensure_key,
    key_file,
    machine_memory,
    read_key,
)
from longshore.core.api_keys import SECRET_BYTES, make_key
from longshore.core.inspection import BackupFacts, ReportBytes, RestoreFacts, StoreFacts
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, TaskRow
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host import forkserver_client
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.host.registry import FileWorkerRegistry, page_path
from longshore.execution.host.task_users import TaskUsers
from longshore.execution.linux import hide_memory as hide_memory
from longshore.execution.linux import return_large_memory as return_large_memory
from longshore.execution.process_table import rss_bytes_of
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.child_slots import ChildSlots, SlotListener
from longshore.ports.clock import Clock
from longshore.ports.output import OutputChunk
from longshore.ports.runner import Runner
from longshore.ports.task_source import TaskSource
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.api_keys import ApiKeys
from longshore.services.app import POLL_INTERVAL, Application, Caller
from longshore.services.budgets import BudgetOperations, BudgetReservations
from longshore.services.dead_letters import DeadLetters
from longshore.services.definitions import DefinitionSync
from longshore.services.dispatcher import Dispatcher
from longshore.services.explain import Explainer
from longshore.services.followers import follow_task
from longshore.services.health import AlertSender, HealthCheck
from longshore.services.message_source import MessageTaskSource
from longshore.services.operator_commands import OperatorCommands
from longshore.services.resilience import Readiness, race
from longshore.services.retention import JobRetention
from longshore.services.spill import DocumentStore
from longshore.services.submit import Producer
from longshore.services.sweeper import Sweeper
from longshore.services.transitions import Transitions
from longshore.services.worker.context import (
    AgentSlots,
    ArtifactPolicy,
    OutputPolicy,
    WorkerContext,
)
from longshore.services.worker.group import WorkerGroup, wait_until_idle
from longshore.services.worker.worker import Worker
from longshore.settings import Settings, check_store_is_named, child_environment, read_task_secret
from longshore.wiring.backends import open_backend

if TYPE_CHECKING:
    from longshore.adapters.sqlite.database import SqliteOptions

new_id = partial(secrets.token_hex, 8)
"""Makes a random change id."""
system_clock = SystemClock
"""Makes the clock of this machine, for callers without services."""
raise_open_files_limit = forkserver_client.raise_open_files_limit
"""Lets this process, but not its tasks, open as many files as its hard limit allows."""
resident_bytes = rss_bytes_of
"""Returns the resident memory of a process in bytes; 0 if it is gone or cannot be seen."""


def new_worker_id() -> str:
    """A new worker id with the names of host and process."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c == "-")[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a worker process acts by itself. Tests and the simulator use shorter times."""

    sweep: timedelta = timedelta(minutes=1)
    dead_worker_check: timedelta = timedelta(milliseconds=500)
    output_flush: timedelta = timedelta(milliseconds=50)  # output is batched for so long


DEFAULT_INTERVALS: Final = Intervals()


@dataclass(frozen=True, kw_only=True, eq=False)
class Services:
    """The services of one process on one backend. Each is built when it is first used."""

    settings: Settings
    backend: Backend
    worker_registry: WorkerRegistry
    new_id: Callable[[], str] = new_id
    intervals: Intervals = DEFAULT_INTERVALS
    # Those of the settings, in a server with a worker; another process cannot know.
    task_secrets: Collection[str] | None = None

    @property
    def environment(self) -> str:
        return self.settings.environment

    @cached_property
    def documents(self) -> DocumentStore:
        sizes = self.settings.sizes
        return DocumentStore(self.backend.blobs, sizes.inline_result_bytes)

    @cached_property
    def transitions(self) -> Transitions:
        return Transitions(backend=self.backend, documents=self.documents, new_id=self.new_id)

    @cached_property
    def source(self) -> TaskSource:
        return self.backend.source or MessageTaskSource(
            backend=self.backend,
            transitions=self.transitions,
            lease=self.settings.worker,
            tenant=self.settings.tenant,
            app=self.settings.app,
        )

    @cached_property
    def reservations(self) -> BudgetReservations:
        return BudgetReservations(backend=self.backend, transitions=self.transitions)

    @cached_property
    def budget_operations(self) -> BudgetOperations:
        return BudgetOperations(
            backend=self.backend,
            transitions=self.transitions,
            reservations=self.reservations,
            day_budget=self.settings.agent.day_budget,
            app=self.settings.app,
        )

    @cached_property
    def operator_commands(self) -> OperatorCommands:
        return OperatorCommands(
            backend=self.backend,
            transitions=self.transitions,
            documents=self.documents,
            dispatcher=self.dispatcher,
            finish_intent=self.finish_intent,
        )

    @cached_property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(
            backend=self.backend,
            transitions=self.transitions,
            operator_commands=self.operator_commands,
            app=self.settings.app,
            skew_margin=self.settings.worker.skew_margin,
        )

    @cached_property
    def explainer(self) -> Explainer:
        return Explainer(
            backend=self.backend,
            documents=self.documents,
            worker_registry=self.worker_registry,
            lease=self.settings.worker,
        )

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            backend=self.backend,
            transitions=self.transitions,
            documents=self.documents,
            worker_registry=self.worker_registry,
            wait=self.settings.worker.poll_wait,
            poll_interval=self.intervals.dead_worker_check,
        )

    @cached_property
    def producer(self) -> Producer:
        return Producer(
            backend=self.backend,
            transitions=self.transitions,
            documents=self.documents,
            dispatcher=self.dispatcher,
            retry=self.settings.retry.plain,
            task_limit=self.settings.sizes.max_tasks_per_job,
            input_limit_bytes=self.settings.sizes.input_bytes,
            app=self.settings.app,
        )

    @cached_property
    def retention(self) -> JobRetention:
        retention = self.settings.retention
        return JobRetention(
            backend=self.backend,
            keep_for=retention.jobs,
            keep_other_events_for=retention.other_events,
        )

    @cached_property
    def readiness(self) -> Readiness:
        return Readiness(self.backend)

    @cached_property
    def sweeper(self) -> Sweeper:
        return Sweeper(
            backend=self.backend,
            source=self.source,
            transitions=self.transitions,
            dispatcher=self.dispatcher,
            dead_letters=self.dead_letters,
            budget_operations=self.budget_operations,
            finish_intent=self.finish_intent,
            retention=self.retention,
            worker_registry=self.worker_registry,
            tenant=self.settings.tenant,
            app=self.settings.app,
            every=self.intervals.sweep,
            dead_worker_check_every=self.intervals.dead_worker_check,
            skew_margin=self.settings.worker.skew_margin,
            lease_duration=self.settings.worker.duration,
            sweeps=self.settings.workers_dispatch,
        )

    @cached_property
    def api_keys(self) -> ApiKeys:
        return ApiKeys(
            backend=self.backend,
            app=self.settings.app,
            rate=self.settings.api.rate,
            random_bytes=secrets.token_bytes,
        )

    @cached_property
    def alert_sender(self) -> AlertSender:
        return AlertSender(
            backend=self.backend,
            channels=list(_alert_channels(self.settings, self.backend.clock)),
            cool_down=self.settings.health.cool_down,
            timeout=self.settings.alerts.timeout,
        )

    @cached_property
    def health_check(self) -> HealthCheck:
        return HealthCheck(
            backend=self.backend,
            worker_registry=self.worker_registry,
            alert_sender=self.alert_sender,
            app=self.settings.app,
            tenant=self.settings.tenant,
            queues=self.settings.worker.queues,
            every=self.settings.health.every,
            thresholds=self.settings.health,
        )

    def application(
        self, caller: Caller | None = None, *, poll: timedelta = POLL_INTERVAL
    ) -> Application:
        """The operations of a caller; None: of the user of this process, for the own tenant."""
        if caller is None:
            name = "user"
            with contextlib.suppress(KeyError, OSError):
                name = getpass.getuser()
            caller = Caller(tenant=self.settings.tenant, name=name)
        return Application(self, caller, poll=poll)

    def worker_group(self, queues: Sequence[str] | None = None) -> WorkerGroup:
        """A worker of this process with dispatcher and sweeper.

        Args:
            queues: The queues to work on; None: those of the settings.
        """
        return WorkerGroup(
            worker=self.worker(queues=queues),
            dispatcher=self.dispatcher if self.settings.workers_dispatch else None,
            sweeper=self.sweeper,
        )

    def now(self) -> datetime:
        """The current time by the clock of the backend."""
        return self.backend.clock.now()

    def follow_task(self, task_id: str) -> AsyncIterator[tuple[TaskRow, list[OutputChunk]]]:
        """The task's row and its new output, again and again until the task has ended."""
        return follow_task(self.backend, task_id)

    async def run_until_idle(self, group: WorkerGroup) -> None:
        """Run until the group has stopped, or its queues have no task that is due soon.

        A task that waits for its next attempt is due soon; one that is due next week is not.
        """
        idle = wait_until_idle(
            self.backend,
            self.source,
            self.dispatcher,
            tenant=self.settings.tenant,
            queues=self.settings.worker.queues,
            horizon=self.settings.retry.cap,
        )
        async with race(idle, group.wait()) as parts:
            for part in parts:
                if part.done():
                    await part

    def worker(self, *, queues: Sequence[str] | None = None) -> Worker:
        """A worker of this process, whose attempts run in child processes."""
        settings, name = self.settings, new_worker_id()
        sdk = settings.agent.preload or find_spec("claude_agent_sdk") is not None
        runner = ProcessRunner(
            settings.data_dir.absolute(),
            child_environment(settings),
            self.backend.clock,
            keep_folders=settings.worker.keep_work_dirs,
            max_processes=settings.worker.max_processes,
            users=TaskUsers(settings.worker.run_as) if settings.worker.run_as else None,
            read_secret=partial(read_task_secret, settings.worker.task_secrets),
            agent_access=agent_config(settings),
            modules=settings.worker.app,
            agent_modules=("longshore.execution.runners.agent.warmup",) if sdk else (),
            preload=settings.agent.preload,
            # They stay open while any process of a child is alive.
            inherited_fds=lambda: self.worker_registry.lock_descriptors(name),
        )
        return self.worker_with_runner(
            runner,
            name,
            process_id=os.getpid(),
            roll=random.random,
            memory_bytes=machine_memory(),
            queues=queues,
            # The children of a slot are forked before it is known whose task they run.
            make_slots=None
            if settings.worker.run_as
            else lambda listener: runner.make_slots(
                listener, page_path=page_path(settings.data_dir.absolute(), name)
            ),
        )

    def worker_with_runner(
        self,
        runner: Runner,
        name: str,
        *,
        process_id: int,
        roll: Callable[[], float],
        memory_bytes: int | None = None,
        queues: Sequence[str] | None = None,
        make_slots: Callable[[SlotListener], ChildSlots] | None = None,
    ) -> Worker:
        """A worker whose attempts are run by ``runner``, or in child slots where they can be."""
        settings = self.settings
        context = WorkerContext(
            worker_id=name,
            backend=self.backend,
            source=self.source,
            transitions=self.transitions,
            documents=self.documents,
            reservations=self.reservations,
            runner=runner,
            worker_registry=self.worker_registry,
            lease=settings.worker,
            day_budget=settings.agent.day_budget,
            output=OutputPolicy(
                flush_after=self.intervals.output_flush,
                limit_bytes=settings.sizes.output_bytes_per_attempt,
            ),
            artifacts=ArtifactPolicy(limit_bytes=settings.sizes.artifact_bytes_per_attempt),
            agent_slots=AgentSlots(settings.agent.max_concurrent(memory_bytes)),
            timeout=settings.worker.task_timeout,
            result_limit_bytes=settings.sizes.result_bytes,
            process_id=process_id,
            queues=settings.worker.queues if queues is None else tuple(queues),
            concurrency=settings.worker.concurrency,
            poll_wait=settings.worker.poll_wait,
            drain_grace=settings.worker.drain_grace,
            jitter=roll,
            make_slots=make_slots,
        )
        return Worker(context)

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Carry out the rest of an intent. Returns False if another process was faster."""
        finishers = {
            IntentKind.CREATE: self.producer.finish_creation,
            IntentKind.ADD: self.producer.finish_creation,
            IntentKind.CANCEL: self.operator_commands.finish_cancel,
            IntentKind.RESUME: self.operator_commands.finish_resume,
            IntentKind.UNPARK: self.budget_operations.finish_unpark,
        }
        return await finishers[intent.kind](job, intent)

    def definition_sync(self, folder: Path) -> DefinitionSync:
        """Stores the definitions of the files of a folder."""
        return DefinitionSync(self.backend, self.settings.tenant, str(folder))

    async def ensure_machine_key(self, path: Path | None = None) -> Path:
        """The file with the key that this machine created for itself; it allows everything."""
        path = path or machine_key_file(self.settings)
        # Where the first versions stored it, and tasks can read it.
        earlier = self.settings.data_dir.absolute() / "api-key"
        text = ensure_key(
            path, lambda: read_key(earlier) or make_key(secrets.token_bytes(SECRET_BYTES))
        )
        earlier.unlink(missing_ok=True)
        # The file first: a registered key that no file has could never be used or revoked.
        await self.api_keys.ensure(text, self.settings.tenant, name=socket.gethostname())
        return path


@contextlib.asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    intervals: Intervals = DEFAULT_INTERVALS,
    sqlite: SqliteOptions | None = None,
) -> AsyncIterator[Services]:
    """The services on the backend that the settings name; it is closed at the end.

    Raises:
        BackendUnavailable: the data folder cannot be used.
        UsageError: this process belongs to an attempt, and no store is named.
    """
    check_store_is_named(settings)
    folder = settings.data_dir.absolute()
    async with contextlib.AsyncExitStack() as stack:
        try:
            backend = await stack.enter_async_context(open_backend(settings, sqlite))
        except OSError as error:
            reason = f"{error.strerror}; see --data-dir and the setting data_dir"
            message = f"the data folder {str(folder)!r} cannot be used: {reason}"
            raise BackendUnavailable(message) from error
        registry = stack.enter_context(contextlib.closing(FileWorkerRegistry(folder)))
        yield Services(
            settings=settings, backend=backend, worker_registry=registry, intervals=intervals
        )


def agent_config(settings: Settings) -> dict[str, Any]:
    """How agents reach the model, and what they may do on this machine."""
    agent = settings.agent
    kind, secret = agent.credential or (None, None)
    return {
        "credential": {"kind": kind, "secret": secret},
        "baseUrl": agent.base_url,
        "model": agent.model,
        "cliPath": None if agent.cli_path is None else str(agent.cli_path),
        "retries": agent.retries,
        "responseTimeoutMs": int(agent.response_timeout.total_seconds() * 1000),
        "stallTimeoutMs": int(agent.stall_timeout.total_seconds() * 1000),
        "allowBypass": agent.allow_bypass,
        "localRepositories": agent.local_repositories,
        "repositoryHosts": agent.repository_hosts,
    }


def _alert_channels(settings: Settings, clock: Clock) -> Iterator[Alerts]:
    """The configured alert channels; each is imported only if it is configured."""
    alerts = settings.alerts
    if alerts.slack_token is not None:
        from longshore.adapters.alerts.slack import slack_bot

        token, channel = alerts.slack_token.get_secret_value(), alerts.slack_channel or ""
        yield slack_bot(token=token, channel=channel, clock=clock, timeout=alerts.timeout)
    if alerts.slack_webhook is not None:
        from longshore.adapters.alerts.slack import slack_webhook

        url = alerts.slack_webhook.get_secret_value()
        yield slack_webhook(url=url, clock=clock, timeout=alerts.timeout)
    if alerts.webhook_url is not None:
        from longshore.adapters.alerts.webhook import webhook_alerts

        signing = [secret.get_secret_value() for secret in alerts.webhook_secrets]
        url = alerts.webhook_url.get_secret_value()
        yield webhook_alerts(url, signing, clock, timeout=alerts.timeout)


def read_machine_key(settings: Settings) -> str | None:
    """The key that a server on this data folder created for itself, if there is one."""
    return read_key(machine_key_file(settings))


def machine_key_file(settings: Settings) -> Path:
    """The file of the key that a server on this data folder creates for itself."""
    return key_file(settings.keys_dir, settings.data_dir)


def store_exists(settings: Settings) -> bool:
    """Whether a store exists already; on AWS it does."""
    # Imported here and below, so that other backends do not load SQLite.
    from longshore.adapters.sqlite import inspection

    return settings.backend != "sqlite" or inspection.store_exists(settings.data_dir.absolute())


def inspect_store(settings: Settings) -> StoreFacts:
    """Facts about the data folder, read without opening the store."""
    from longshore.adapters.sqlite import inspection

    return inspection.inspect_store(settings.data_dir.absolute(), now=SystemClock().now())


def prove_store_write(settings: Settings) -> str | None:
    """Write to the store of the data folder, without opening it. Returns why that failed."""
    from longshore.adapters.sqlite import inspection

    return inspection.prove_write(settings.data_dir.absolute())


def check_has_data_folder(settings: Settings) -> None:
    """Check that there is something that can be backed up or restored here.

    Raises:
        UsageError: this process belongs to an attempt, and no store is named, or the store is on
            AWS.
    """
    check_store_is_named(settings)
    if settings.backend != "sqlite":
        raise UsageError(
            f"the backend is {settings.backend}, and only data folders can be backed up and"
            " restored with this command; on AWS, restore the tables to a point in time"
        )


def back_up(settings: Settings, target: Path, report: ReportBytes) -> BackupFacts:
    """Back up the data folder while it is used; see ``adapters.sqlite.backups``."""
    from longshore.adapters.sqlite.backups import backup

    check_has_data_folder(settings)
    return backup.make_backup(
        settings.data_dir.absolute(),
        target,
        now=SystemClock().now(),
        version=version("longshore"),
        report=report,
    )


async def restore(settings: Settings, source: Path, report: ReportBytes) -> RestoreFacts:
    """Restore a backup to the data folder; see ``adapters.sqlite.backups``.

    The leases of the store that was backed up are ended, and the machine gets a new key.
    """
    from longshore.adapters.sqlite.backups.restore import moment_after, restored

    folder, clock = settings.data_dir.absolute(), SystemClock()
    check_has_data_folder(settings)
    key_file = machine_key_file(settings)
    opened = restored(source, folder, now=clock.now(), report=report)
    with opened as (draft, backup, epoch):
        # That of a folder which had this path before.
        key_file.unlink(missing_ok=True)
        in_draft = replace(settings, data_dir=draft)
        async with open_services(in_draft) as services:
            await services.ensure_machine_key(key_file)
            leases_ended = await services.sweeper.end_all_leases()
        while (left := moment_after(epoch) - clock.now()) > timedelta():
            await clock.sleep(left)
    return RestoreFacts(
        backup=backup,
        restored_at=clock.now(),
        folder=folder,
        epoch=epoch,
        leases_ended=leases_ended,
        key_file=key_file,
    )


def open_worker_registry(settings: Settings) -> WorkerRegistry:
    """The worker registry of a data folder, which must exist."""
    return FileWorkerRegistry(settings.data_dir.absolute())
