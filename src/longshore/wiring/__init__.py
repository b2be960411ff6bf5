"""What is plugged into what: settings → backend (``backends``) → services."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from longshore.adapters.process.presence import FilePresence
from longshore.adapters.process.table import rss_bytes_of
from longshore.adapters.system import key_file
from longshore.adapters.system.clock import SystemClock
from longshore.adapters.system.memory import machine_memory
from longshore.core.backoff import RetryPolicy
from longshore.core.health import HealthPolicy
from longshore.core.keys import SECRET_BYTES, key_from
from longshore.core.lease import LeasePolicy
from longshore.core.rate import Rate
from longshore.core.rows import IntentKind
from longshore.errors import ConfigurationError
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.inspection import StoreFacts
from longshore.ports.presence import Presence
from longshore.ports.runner import Runner
from longshore.services.access import Access
from longshore.services.accounting import Accounting
from longshore.services.adding import Adding
from longshore.services.alerting import Alerting
from longshore.services.artifacts import ArtifactPolicy
from longshore.services.budgeting import Budgeting
from longshore.services.cancelling import Cancelling
from longshore.services.dead_letters import DeadLetters
from longshore.services.definition_sync import DefinitionSync
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.explaining import Explaining
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from longshore.services.pausing import Pausing
from longshore.services.producer import Producer
from longshore.services.resuming import Resuming
from longshore.services.reviewing import Reviewing
from longshore.services.sweeper import Sweeper, SweeperPolicy
from longshore.services.task_creation import TaskCreation
from longshore.services.transitions import Transitions
from longshore.services.worker.output import OutputPolicy
from longshore.services.worker.room import Room
from longshore.services.worker.tools import Tools
from longshore.services.worker.worker import Worker, WorkerPolicy
from longshore.settings import Settings
from longshore.wiring.agents import children_of
from longshore.wiring.backends import backend_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything, ready for use."""

    settings: Settings
    backend: Backend
    transitions: Transitions
    documents: Documents
    producer: Producer
    adding: Adding
    access: Access
    health_check: HealthCheck
    dispatcher: Dispatcher
    sweeper: Sweeper
    dead_letters: DeadLetters
    accounting: Accounting
    budgeting: Budgeting
    presence: Presence
    cancelling: Cancelling
    resuming: Resuming
    reviewing: Reviewing
    explaining: Explaining
    pausing: Pausing
    definition_sync: DefinitionSync

    def worker(self, worker_id: str | None = None) -> Worker:
        """A worker of this process."""
        name = worker_id or new_worker_id()
        runner = children_of(self.settings, self.backend.clock, lambda: self.presence.held_by(name))
        return self.worker_with(
            runner, name, process_id=os.getpid(), roll=random.random, memory_bytes=machine_memory()
        )

    def worker_with(
        self,
        runner: Runner,
        name: str,
        *,
        process_id: int,
        roll: Callable[[], float],
        memory_bytes: int | None = None,
    ) -> Worker:
        """A worker whose attempts are carried out by ``runner``."""
        settings = self.settings
        tools = Tools(
            worker_id=name,
            backend=self.backend,
            transitions=self.transitions,
            documents=self.documents,
            accounting=self.accounting,
            runner=runner,
            presence=self.presence,
            lease=_lease_policy(settings),
            output=OutputPolicy(
                flush_after=settings.worker.output_flush,
                limit_bytes=settings.limits.output_bytes_per_attempt,
            ),
            artifacts=ArtifactPolicy(
                limit_files=settings.limits.artifact_files_per_attempt,
                limit_bytes=settings.limits.artifact_bytes_per_attempt,
            ),
            room=Room(settings.agent.at_once(memory_bytes)),
            day_budget=settings.agent.day_budget,
            longest_hold=settings.agent.longest_hold,
            timeout=settings.worker.task_timeout,
            result_limit_bytes=settings.limits.result_bytes,
            process_id=process_id,
            roll=roll,
        )
        policy = WorkerPolicy(
            queues=settings.worker.queues,
            concurrency=settings.worker.concurrency,
            poll_wait=settings.worker.poll_wait,
            drain_grace=settings.worker.drain_grace,
            tenant=settings.tenant,
            app=settings.app,
        )
        return Worker(tools, policy)


def new_id() -> str:
    """A fresh change id."""
    return secrets.token_hex(8)


def new_worker_id() -> str:
    """A name that no worker has had before."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c == "-")[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def _lease_policy(settings: Settings) -> LeasePolicy:
    worker = settings.worker
    return LeasePolicy(
        renew_every=worker.renew_every,
        extend_by=worker.extend_by,
        kill_grace=worker.kill_grace,
        skew_margin=worker.skew_margin,
    )


@contextlib.asynccontextmanager
async def wired(settings: Settings) -> AsyncIterator[Services]:
    """All services on the backend that the settings name, closed at the end."""
    async with backend_of(settings) as backend:
        with contextlib.closing(FilePresence(settings.data_dir.absolute())) as presence:
            yield services_on(settings, backend, presence)


def services_on(
    settings: Settings,
    backend: Backend,
    presence: Presence,
    *,
    new_id: Callable[[], str] = new_id,
) -> Services:
    """All services of one process on a backend that is there already."""
    documents = Documents(backend.blobs)
    transitions = Transitions(
        ledger=backend.ledger,
        queue=backend.queue,
        documents=documents,
        clock=backend.clock,
        new_id=new_id,
    )
    retry = RetryPolicy(
        max_attempts=settings.retry.max_attempts,
        base=settings.retry.base,
        cap=settings.retry.cap,
    )
    creation = TaskCreation(
        backend=backend,
        transitions=transitions,
        retry=retry,
        task_limit=settings.limits.max_tasks_per_job,
        input_limit_bytes=settings.limits.input_bytes,
    )
    producer = Producer(
        backend=backend,
        transitions=transitions,
        documents=documents,
        creation=creation,
        app=settings.app,
    )
    dispatcher = Dispatcher(
        backend=backend,
        transitions=transitions,
        documents=documents,
        presence=presence,
        wait=settings.worker.poll_wait,
        look_every=settings.worker.look_every,
    )
    adding = Adding(
        backend=backend,
        transitions=transitions,
        documents=documents,
        creation=creation,
        dispatcher=dispatcher,
    )
    resuming = Resuming(
        backend=backend, transitions=transitions, documents=documents, dispatcher=dispatcher
    )
    accounting = Accounting(backend, transitions)
    budgeting = Budgeting(
        backend=backend,
        transitions=transitions,
        accounting=accounting,
        day=settings.agent.day_budget,
        app=settings.app,
    )
    others = {
        IntentKind.UNPARK: budgeting.finish,
        IntentKind.CREATE: producer.finish_creating,
        IntentKind.ADD: adding.finish,
        IntentKind.RESUME: resuming.finish,
    }
    cancelling = Cancelling(
        backend=backend,
        transitions=transitions,
        documents=documents,
        dispatcher=dispatcher,
        others=others,
    )
    dead_letters = DeadLetters(
        backend=backend,
        transitions=transitions,
        resuming=resuming,
        app=settings.app,
        skew_margin=settings.worker.skew_margin,
    )
    return Services(
        settings=settings,
        backend=backend,
        transitions=transitions,
        documents=documents,
        producer=producer,
        adding=adding,
        access=Access(
            backend=backend,
            app=settings.app,
            rate=Rate(per_second=settings.api.requests_per_second, burst=settings.api.burst),
            draw=secrets.token_bytes,
        ),
        dispatcher=dispatcher,
        sweeper=Sweeper(
            backend=backend,
            transitions=transitions,
            dispatcher=dispatcher,
            dead_letters=dead_letters,
            budgeting=budgeting,
            finishers={
                **others,
                IntentKind.CANCEL: cancelling.finish,
            },
            presence=presence,
            policy=SweeperPolicy(
                every=settings.worker.sweep_every,
                look_for_dead_every=settings.worker.look_every,
                skew_margin=settings.worker.skew_margin,
                sweeps=settings.works_alone,
            ),
        ),
        dead_letters=dead_letters,
        accounting=accounting,
        budgeting=budgeting,
        health_check=_health_check(settings, backend, presence),
        presence=presence,
        cancelling=cancelling,
        resuming=resuming,
        pausing=Pausing(backend),
        definition_sync=definition_sync_on(backend),
        reviewing=Reviewing(backend=backend, transitions=transitions, dispatcher=dispatcher),
        explaining=Explaining(
            backend=backend,
            documents=documents,
            presence=presence,
            lease=_lease_policy(settings),
        ),
    )


def definition_sync_on(backend: Backend) -> DefinitionSync:
    """What brings definitions of files into a backend that is there already."""
    return DefinitionSync(backend)


def _health_check(settings: Settings, backend: Backend, presence: Presence) -> HealthCheck:
    health = settings.health
    thresholds = HealthPolicy(
        longest_run=health.longest_run,
        healthy_within=health.healthy_within,
        warning_within=health.warning_within,
    )
    return HealthCheck(
        backend=backend,
        presence=presence,
        alerting=alerting_on(settings, backend),
        app=settings.app,
        tenant=settings.tenant,
        policy=HealthCheckPolicy(every=health.every, thresholds=thresholds),
    )


def alerting_on(settings: Settings, backend: Backend) -> Alerting:
    """What tells people, by every channel that is set up."""
    return Alerting(
        backend,
        list(_channels(settings, backend.clock)),
        cool_down=settings.health.cool_down,
        within=settings.alerts.timeout,
    )


def _channels(settings: Settings, clock: Clock) -> Iterator[Alerts]:
    """The ways in which people hear of what a health check finds; each is imported if it is set."""
    alerts = settings.alerts
    if alerts.slack_token is not None or alerts.slack_webhook is not None:
        try:
            from longshore.adapters.alerts import slack
        except ImportError as error:
            problem = "Slack alerts need one more package: pip install 'longshore[slack]'"
            raise ConfigurationError([problem]) from error
        if alerts.slack_token is not None:
            token, to = alerts.slack_token.get_secret_value(), alerts.slack_channel or ""
            yield slack.slack_bot(token=token, to=to, clock=clock, within=alerts.timeout)
        if alerts.slack_webhook is not None:
            url = alerts.slack_webhook.get_secret_value()
            yield slack.slack_webhook(url=url, clock=clock, within=alerts.timeout)
    if alerts.webhook_url is not None:
        from longshore.adapters.alerts.webhook import WebhookAlerts

        signing = [secret.get_secret_value() for secret in alerts.webhook_secrets]
        url = alerts.webhook_url.get_secret_value()
        yield WebhookAlerts(url, signing, clock, within=alerts.timeout)


async def own_key(services: Services) -> Path:
    """Where the key is that this machine has made for itself; it may do everything."""
    folder = services.settings.data_dir.absolute()
    text = key_file.own_key(folder, lambda: key_from(secrets.token_bytes(SECRET_BYTES)))
    # Written down before it is known: a key that nobody has could never be used or revoked.
    await services.access.ensure(text, services.settings.tenant, name=socket.gethostname())
    return folder / key_file.NAME


def machine_key(settings: Settings) -> str | None:
    """The key that a server on this data folder has made for itself, if it has."""
    return key_file.read_key(settings.data_dir.absolute())


def store_exists(settings: Settings) -> bool:
    """Whether anything can have been stored before: memory always starts empty."""
    # Here and below: where SQLite is not used, nobody waits for it to be loaded.
    from longshore.adapters.sqlite import inspection

    return settings.backend != "sqlite" or inspection.exists(settings.data_dir.absolute())


def examine(settings: Settings) -> StoreFacts:
    """What can be told of the data folder without using it."""
    from longshore.adapters.sqlite import inspection

    return inspection.examine(settings.data_dir.absolute(), now=SystemClock().now())


def system_clock() -> Clock:
    """The machine's clock, for whoever needs no services."""
    return SystemClock()


def memory_of(process_id: int) -> int:
    """Resident memory of a process in bytes; 0 if it is gone or cannot be seen."""
    return rss_bytes_of(process_id)


def presence_in(settings: Settings) -> Presence:
    """Who is at work in the data folder; it must exist."""
    return FilePresence(settings.data_dir.absolute())
