"""What can be set: each setting with its type, its unit, its bounds, and one line for a person.

Reference pages and ``longshore settings`` are made from these classes. What depends on each other
is checked together, with a message that names both. Where pure code has the number already, as
the default of a policy, it is taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import time, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr

from longshore.core.ids import is_name
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.supervision import SupervisionPolicy
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LEASE_SLACK, LeasePolicy
from longshore.settings.agent import AgentSettings
from longshore.settings.api import ApiSettings
from longshore.settings.aws import AwsSettings, stage_problems
from longshore.settings.fields import (
    GIB,
    KIB,
    MIB,
    NONE,
    Duration,
    Section,
    bounded,
    exceeds_message,
    format_value,
    lower,
    optional_value,
    split_list,
    split_optional_list,
)
from longshore.settings.health import AlertsSettings, HealthSettings

DEFAULT_PASS_ENVIRONMENT: Final = (
    *("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PWD"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY"),
    *("LC_NUMERIC", "LC_TIME", "TERM", "COLORTERM", "FORCE_COLOR", "NODE_ENV"),
    *("CLAUDE_CODE_PATH", "CLAUDE_CONFIG_DIR", "CLAUDE_TIMEOUT", "MAX_CONCURRENT_CLAUDE"),
    *("CLAUDE_SKIP_PERMISSIONS", "AWS_REGION", "S3_BUCKET", "DELETE_FILES_AFTER_UPLOAD"),
    *("EVENTBRIDGE_BUS_NAME", "TENANT_ID", "APP_NAME", "TASK_DEFINITIONS_TABLE"),
)
# What a task may do with these is for its definition to say, not for the worker's settings.
_CREDENTIALS = {
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("LONGSHORE_AGENT_API_KEY", "LONGSHORE_AGENT_AUTH_TOKEN", "LONGSHORE_AGENT_OAUTH_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("LONGSHORE_ALERTS_SLACK_TOKEN", "LONGSHORE_ALERTS_SLACK_WEBHOOK"),
    *("LONGSHORE_ALERTS_WEBHOOK_URL", "LONGSHORE_ALERTS_WEBHOOK_SECRETS"),
    *("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL"),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_LEASE, _RETRY, _SUPERVISION = LeasePolicy(), RetryPolicy(), SupervisionPolicy()
_ZERO, _TICK, _SECOND = timedelta(0), timedelta(milliseconds=1), timedelta(seconds=1)
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def _check_name(text: str) -> str:
    if not is_name(text):
        message = f"{text!r} is not a name: use 1 to 64 letters, digits, '-' and '_'"
        raise ValueError(message)
    return text


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        message = f"{name!r} is not the name of a variable"
        raise ValueError(message)
    if name in _CREDENTIALS:
        message = f"{name} is a credential: only the definition of a task can ask for it"
        raise ValueError(message)
    return name


def _parse_time_of_day(value: object) -> object:
    text = value.isoformat() if isinstance(value, time) else value
    if isinstance(text, str) and _TIME_OF_DAY.fullmatch(text):
        # Out of the bounds of a day is a ValueError too.
        return time.fromisoformat(text)
    if value is None or value == NONE:
        return None
    message = f"{value!r} is not a time of day: write it like 03:30"
    raise ValueError(message)


def _check_module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        message = f"{name!r} is not the name of a module: write it as in an import, like shop.tasks"
        raise ValueError(message)
    return name


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        message = f"{','.join(names)!r} must have at least one name, and none twice"
        raise ValueError(message)
    return names


def _expand_optional(path: Path | None) -> Path | None:
    return None if path is None else _expand(path)


def _expand(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        message = f"no home folder is known for {str(path)!r}"
        raise ValueError(message) from error


Name = Annotated[str, AfterValidator(_check_name)]
QueueNames = Annotated[tuple[Name, ...], BeforeValidator(split_list), AfterValidator(_check_unique)]
Variables = Annotated[
    tuple[Annotated[str, AfterValidator(_check_variable)], ...],
    BeforeValidator(split_optional_list),
]
Modules = Annotated[
    tuple[Annotated[str, AfterValidator(_check_module)], ...], BeforeValidator(split_optional_list)
]


class WorkerSettings(Section):
    """How a worker takes tasks, runs them, and lets go of them."""

    concurrency: int = bounded("How many tasks a worker runs at the same time.", 3, 1, 1_000)
    queues: QueueNames = Field(
        default=("default",), description="Names of the queues that a worker serves."
    )
    app: Modules = Field(
        default=(), description="Names of modules that are imported before tasks are run."
    )
    renew_every: Duration = bounded(
        "Time between two renewals of a running task's lease.", _LEASE.renew_every, _TICK, _HOUR
    )
    # At most two thirds of the 12 hours for which SQS can hide a message.
    extend_by: Duration = bounded(
        "Time each renewal adds; a lease lasts 1.5 × as long.", _LEASE.extend_by, _TICK, 8 * _HOUR
    )
    task_timeout: Duration = bounded(
        "Time an attempt may take if its definition sets none.", 200 * _SECOND, _TICK, 30 * _DAY
    )
    kill_grace: Duration = bounded(
        "Time from asking an attempt to end to killing it.", _LEASE.kill_grace, _ZERO, _HOUR
    )
    drain_grace: Duration = bounded(
        "Time running attempts get when the worker is stopped.", 30 * _SECOND, _ZERO, _DAY
    )
    skew_margin: Duration = bounded(
        "Time by which the clocks of two machines may differ.", _LEASE.skew_margin, _ZERO, _HOUR
    )
    # SQS waits no longer than this.
    poll_wait: Duration = bounded(
        "Time a request for work waits at an empty queue.", 20 * _SECOND, _ZERO, 20 * _SECOND
    )
    sweep_every: Duration = bounded(
        "Time between two sweeps that mend what crashes left behind.", _MINUTE, _TICK, _MINUTE
    )
    dead_worker_check_every: Duration = bounded(
        "Time between two looks for workers of this machine that died.", 500 * _TICK, _TICK, _MINUTE
    )
    output_flush: Duration = bounded(
        "Time output may be held back to be stored in one go.", 50 * _TICK, _ZERO, _MINUTE
    )
    keep_work_dirs: bool = Field(
        default=False, description="Whether the folder of an attempt stays when it has ended."
    )
    pass_environment: Variables = Field(
        default=DEFAULT_PASS_ENVIRONMENT,
        description="Names of the variables that are handed to tasks.",
    )

    @property
    def lease_duration(self) -> timedelta:
        """How long a lease lasts from the moment it is written."""
        return self.extend_by * LEASE_SLACK

    @property
    def stop_timeout(self) -> timedelta:
        """How long what runs can take to end when the worker is stopped."""
        return self.drain_grace + self.kill_grace

    def contradictions(self) -> Iterator[str]:
        every = f"worker.renew_every ({format_value(self.renew_every)})"
        reach = f"worker.extend_by ({format_value(self.extend_by)})"
        if self.renew_every >= self.extend_by:
            yield f"{every} must be shorter than {reach}"
        elif self.renew_every + self.kill_grace + self.skew_margin >= self.lease_duration:
            yield (
                f"{every}, worker.kill_grace ({format_value(self.kill_grace)}) and"
                " worker.skew_margin "
                f"({format_value(self.skew_margin)}) must together be shorter than {LEASE_SLACK} × "
                f"{reach}: an attempt would be killed before it could renew"
            )


class SupervisorSettings(Section):
    """How worker processes are kept running; the time of day is that of the machine."""

    processes: int = bounded(
        "How many worker processes a supervisor runs; 0: there is none.", 0, 0, 1_000
    )
    restart_delay: Duration = bounded(
        "Time before a worker that ended is started again.",
        *(_SUPERVISION.restart_delay, _ZERO, _HOUR),
    )
    restart_limit: int = bounded(
        "How many restarts in a row may live shortly before all ends.",
        *(_SUPERVISION.restart_limit, 1, 1_000_000),
    )
    short_life: Duration = bounded(
        "Time that a worker must live for its end not to count as a bad start.",
        *(_SUPERVISION.short_life, _ZERO, _DAY),
    )
    memory_ceiling: ByteSize = bounded(
        "Bytes of memory beyond which a worker process is recycled; 0 sets no ceiling.",
        *(ByteSize(_SUPERVISION.memory_ceiling_bytes), ByteSize(0), 1024 * GIB),
    )
    recycle_at: Annotated[time | None, BeforeValidator(_parse_time_of_day)] = Field(
        default=_SUPERVISION.recycle_at,
        description="Time of day, like 03:30, at which workers are recycled, one after the other.",
    )


class RetrySettings(Section):
    """How often a task is tried, and how long it waits in between."""

    max_attempts: int = bounded(
        "How many attempts a task has if its definition sets none.", _RETRY.max_attempts, 1, 100
    )
    base: Duration = bounded(
        "Longest time before the second attempt; then it doubles.", _RETRY.base, _TICK, _HOUR
    )
    cap: Duration = bounded("Longest time between two attempts.", _RETRY.cap, _TICK, _DAY)

    def contradictions(self) -> Iterator[str]:
        if self.base > self.cap:
            yield exceeds_message("retry.base", self.base, "retry.cap", self.cap)


class DefinitionsSettings(Section):
    """Where `longshore up` finds definitions in files, and how it hears of changes."""

    folder: Annotated[
        Path | None, BeforeValidator(optional_value), AfterValidator(_expand_optional)
    ] = Field(
        default=Path(),
        description="Folder of longshore.yaml and definitions/; none: no files are read.",
    )
    watch_every: Duration = bounded(
        "Time between two looks for changed files; 0: there is only the first.",
        *(_SECOND, _ZERO, _HOUR),
    )


class SizesSettings(Section):
    """How large things may get before they are refused, moved or cut."""

    max_tasks_per_job: int = bounded(
        "How many tasks a job may have.", MAX_TASKS_PER_JOB, 1, 100_000
    )
    input_bytes: ByteSize = bounded("Bytes an input may have.", 50 * MIB, KIB, GIB)
    result_bytes: ByteSize = bounded("Bytes a result may have.", 50 * MIB, KIB, GIB)
    output_bytes_per_attempt: ByteSize = bounded(
        "Bytes of output kept of an attempt; the rest is cut.", 100 * MIB, KIB, 100 * GIB
    )
    artifact_files_per_attempt: int = bounded(
        "How many files are kept of an attempt; the rest is left out.", 1_000, 0, 100_000
    )
    artifact_bytes_per_attempt: ByteSize = bounded(
        "Bytes of files kept of an attempt; the rest is left out.", GIB, ByteSize(0), 1_000 * GIB
    )
    events_ttl_days: int = bounded("Days events are kept; 0 keeps them for ever.", 0, 0, 36_500)


class SqliteSettings(Section):
    """How the file on one machine is written."""

    busy_timeout: Duration = bounded(
        "Time to wait for another process that is writing.", 30 * _SECOND, _TICK, _HOUR
    )
    group_limit: int = bounded("How many changes are committed together.", 256, 1, 10_000)
    wal_autocheckpoint: int = bounded("Pages of log before a checkpoint.", 1_000, 1, 1_000_000)
    slow_poll: Duration = bounded(
        "Time between two looks for work that no wake-up told of.", _SECOND, _TICK, _MINUTE
    )


class Settings(Section):
    """All settings. ``load_settings`` fills them in; built bare, they are the defaults."""

    data_dir: Annotated[Path, AfterValidator(_expand)] = Field(
        default=Path(".longshore"), description="Folder of the database, the blobs and the key."
    )
    backend: Annotated[Literal["sqlite", "memory", "aws"], BeforeValidator(lower)] = Field(
        default="sqlite", description="Where state is kept; memory forgets it at the end."
    )
    app: Name = Field(default="longshore", description="Name of the application in events.")
    tenant: Name = Field(default="default", description="Name of the tenant that work is for.")
    environment: Name = Field(default="dev", description="Name of the stage, like dev or prod.")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = (
        Field(default="info", description="The least important records that are logged.")
    )
    log_format: Annotated[Literal["auto", "text", "json"], BeforeValidator(lower)] = Field(
        default="auto", description="How records look; auto is text in a terminal, else json."
    )
    log_file: Annotated[
        Path | None, BeforeValidator(optional_value), AfterValidator(_expand_optional)
    ] = Field(default=None, description="File that a worker or supervisor logs to, not stderr.")
    log_file_bytes: ByteSize = bounded(
        "Bytes a log file may have; then a new one is begun.", 10 * MIB, KIB, 100 * GIB
    )
    log_file_count: int = bounded("How many full log files are kept beside it.", 5, 1, 1_000)
    url: Annotated[str | None, BeforeValidator(optional_value)] = Field(
        default=None, description="Server that the command line asks instead of the data folder."
    )
    api_key: Annotated[SecretStr | None, BeforeValidator(optional_value)] = Field(
        default=None, description="Key that the command line sends to a server."
    )
    contexts_file: Path = Field(  # expanded when it is used: the default holds for everybody
        default=Path("~/.config/longshore/contexts.json"),
        description="Where the command line remembers servers and keys.",
    )
    worker: WorkerSettings = WorkerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    retry: RetrySettings = RetrySettings()
    sizes: SizesSettings = SizesSettings()
    sqlite: SqliteSettings = SqliteSettings()
    aws: AwsSettings = AwsSettings()
    definitions: DefinitionsSettings = DefinitionsSettings()
    health: HealthSettings = HealthSettings()
    alerts: AlertsSettings = AlertsSettings()
    api: ApiSettings = ApiSettings()
    agent: AgentSettings = AgentSettings()

    @property
    def checks_health(self) -> bool:
        """Whether the health of running tasks is checked here."""
        if self.health.enabled == "auto":
            return self.environment != "dev"
        return self.health.enabled == "true"

    @property
    def workers_dispatch(self) -> bool:
        """Whether workers dispatch and sweep themselves; on AWS functions do."""
        return self.backend != "aws" or not self.aws.functions

    @property
    def stop_timeout(self) -> timedelta:
        """How long a stop of a worker can take: whoever supervises it must wait longer.

        On AWS a poll that is out is waited for while tasks drain: one that is cut off may take
        messages with it.
        """
        least = self.worker.poll_wait if self.backend == "aws" else _ZERO
        return max(self.worker.stop_timeout, least)

    def contradictions(self) -> Iterator[str]:
        if self.backend == "aws":
            yield from stage_problems(self.environment, self.worker.queues)
        if not self.checks_health:
            return
        healthy = f"health.healthy_within ({format_value(self.health.healthy_within)})"
        if self.worker.renew_every >= self.health.healthy_within:
            yield (
                f"worker.renew_every ({format_value(self.worker.renew_every)}) must be"
                " shorter than "
                f"{healthy}: every task would look unhealthy between two heartbeats"
            )
        if self.alerts.timeout >= self.health.every:
            yield (
                f"alerts.timeout ({format_value(self.alerts.timeout)}) must be shorter than "
                f"health.every ({format_value(self.health.every)})"
            )
