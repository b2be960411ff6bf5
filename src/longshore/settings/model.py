"""What can be set: each setting with its type, unit, bounds and description.

The reference page and ``longshore settings`` are generated from these classes. Settings that depend
on each other are checked together. Policies of ``core`` give their defaults and check their rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import time, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr

from longshore.core.api_keys import Rate
from longshore.core.budgets import Budget
from longshore.core.ids import is_name
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.supervision import SupervisionPolicy
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LeasePolicy
from longshore.settings.aws import AwsSettings, stage_problems
from longshore.settings.fields import (
    GIB,
    KIB,
    MIB,
    NONE,
    Duration,
    Optionally,
    Section,
    bounded,
    checked,
    format_value,
    lower,
    optional,
    policy_problems,
    split_list,
    split_optional_list,
    switch,
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
# Only a definition can pass these to a task.
_CREDENTIALS = {
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("LONGSHORE_AGENT_API_KEY", "LONGSHORE_AGENT_AUTH_TOKEN", "LONGSHORE_AGENT_OAUTH_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("LONGSHORE_ALERTS_SLACK_TOKEN", "LONGSHORE_ALERTS_SLACK_WEBHOOK"),
    *("LONGSHORE_ALERTS_WEBHOOK_URL", "LONGSHORE_ALERTS_WEBHOOK_SECRETS"),
    *("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL"),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"\*|[A-Za-z0-9.-]{1,253}|[0-9A-Fa-f:]{2,45}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TIME_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_LEASE, _RETRY, _SUPERVISION = LeasePolicy(), RetryPolicy(), SupervisionPolicy()
_ZERO, _TICK, _SECOND = timedelta(0), timedelta(milliseconds=1), timedelta(seconds=1)
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def _parse_time_of_day(value: object) -> object:
    text = value.isoformat() if isinstance(value, time) else value
    if isinstance(text, str) and _TIME_OF_DAY.fullmatch(text):
        # An hour or minute out of range is a ValueError too.
        return time.fromisoformat(text)
    if value is None or value == NONE:
        return None
    message = f"{value!r} is not a time of day: write it like 03:30"
    raise ValueError(message)


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
        message = f"{str(path)!r} has no home directory"
        raise ValueError(message) from error


Name = Annotated[
    str, checked(is_name, "{value!r} is not a name: use 1 to 64 letters, digits, '-' and '_'")
]
QueueNames = Annotated[tuple[Name, ...], BeforeValidator(split_list), AfterValidator(_check_unique)]
Variable = Annotated[
    str,
    checked(_VARIABLE.fullmatch, "{value!r} is not a variable name"),
    checked(
        lambda name: name not in _CREDENTIALS,
        "{value} is a credential: only the definition of a task can ask for it",
    ),
]
Variables = Annotated[tuple[Variable, ...], BeforeValidator(split_optional_list)]
Module = Annotated[
    str,
    checked(
        lambda name: all(part.isidentifier() for part in name.split(".")),
        "{value!r} is not a module name: write it as in an import, like shop.tasks",
    ),
]
Modules = Annotated[tuple[Module, ...], BeforeValidator(split_optional_list)]
Host = Annotated[
    str,
    checked(_HOST.fullmatch, "{value!r} is not a host name or an IP address"),
    AfterValidator(str.lower),
]
Url = Annotated[
    str | None,
    Optionally,
    checked(
        lambda url: url.startswith(("http://", "https://")),
        "{value!r} is not a URL: write it like https://api.example.com",
    ),
]
OptionalText = Annotated[str | None, Optionally]
OptionalSecret = Annotated[SecretStr | None, Optionally]
OptionalPath = Annotated[Path | None, Optionally, AfterValidator(_expand_optional)]


class WorkerSettings(Section):
    """How a worker takes tasks, runs them and stops."""

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
        "Time from SIGTERM to SIGKILL when an attempt is stopped.", _LEASE.kill_grace, _ZERO, _HOUR
    )
    drain_grace: Duration = bounded(
        "Time running attempts get when the worker is stopped.", 30 * _SECOND, _ZERO, _DAY
    )
    skew_margin: Duration = bounded(
        "Time by which the clocks of two machines may differ.", _LEASE.skew_margin, _ZERO, _HOUR
    )
    # SQS waits no longer than this.
    poll_wait: Duration = bounded(
        "Time a poll of an empty queue waits for a message.", 20 * _SECOND, _ZERO, 20 * _SECOND
    )
    keep_work_dirs: bool = switch("Whether the directory of an attempt is kept after it ended.")
    pass_environment: Variables = Field(
        default=DEFAULT_PASS_ENVIRONMENT,
        description="Names of the environment variables that tasks get.",
    )

    @property
    def lease(self) -> LeasePolicy:
        return LeasePolicy(
            renew_every=self.renew_every,
            extend_by=self.extend_by,
            kill_grace=self.kill_grace,
            skew_margin=self.skew_margin,
        )

    @property
    def stop_timeout(self) -> timedelta:
        """How long running attempts can take to end when the worker is stopped."""
        return self.drain_grace + self.kill_grace

    def contradictions(self) -> Iterator[str]:
        yield from policy_problems("worker", lambda: self.lease)


class SupervisorSettings(Section):
    """How worker processes are kept running; a time of day is local time."""

    processes: int = bounded(
        "How many worker processes a supervisor runs; 0: there is none.", 0, 0, 1_000
    )
    restart_delay: Duration = bounded(
        "Time before a worker that ended is started again.",
        *(_SUPERVISION.restart_delay, _ZERO, _HOUR),
    )
    restart_limit: int = bounded(
        "How many workers in a row may end within 10 s before the supervisor gives up.",
        *(_SUPERVISION.restart_limit, 1, 1_000_000),
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
    """How many attempts a task has, and the time between them."""

    max_attempts: int = bounded(
        "How many attempts a task has if its definition sets none.", _RETRY.max_attempts, 1, 100
    )
    base: Duration = bounded(
        "Longest time before the second attempt; then it doubles.", _RETRY.base, _TICK, _HOUR
    )
    cap: Duration = bounded("Longest time between two attempts.", _RETRY.cap, _TICK, _DAY)

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(max_attempts=self.max_attempts, base=self.base, cap=self.cap)

    def contradictions(self) -> Iterator[str]:
        yield from policy_problems("retry", lambda: self.policy)


class DefinitionsSettings(Section):
    """Where `longshore up` reads definition files."""

    folder: OptionalPath = Field(
        default=Path(),
        description="Directory of longshore.yaml and definitions/; none: no files are read.",
    )
    watch_every: Duration = bounded(
        "Time between two checks for changed files; 0: files are read only at the start.",
        *(_SECOND, _ZERO, _HOUR),
    )


class SizesSettings(Section):
    """Maximum sizes. Larger values are refused, moved or cut."""

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


class ApiSettings(Section):
    """Where the API listens, and the limits of a request."""

    host: Host = Field(default="127.0.0.1", description="Address that the API listens at.")
    port: int = bounded("Port that the API listens at; 0: any free port.", 8421, 0, 65_535)
    hosts: Annotated[tuple[Host, ...], BeforeValidator(split_list)] = Field(
        default=_LOOPBACK,
        description="Host names that requests may use for the server; * allows any.",
        min_length=1,
    )
    body_bytes: ByteSize = bounded("Bytes a request's body may have.", 16 * MIB, KIB, 1024 * MIB)
    requests_per_second: int = bounded(
        "How many requests a second one key may make.", 100, 1, 1_000_000
    )
    burst: int = bounded("How many requests one key may make at once.", 500, 1, 1_000_000)

    @property
    def rate(self) -> Rate:
        return Rate(per_second=self.requests_per_second, burst=self.burst)


class AgentSettings(Section):
    """How agent tasks reach their model, and what they may do on this machine."""

    api_key: OptionalSecret = optional("Key for the model API; also read from ANTHROPIC_API_KEY.")
    auth_token: OptionalSecret = optional(
        "Bearer token instead; also read from ANTHROPIC_AUTH_TOKEN."
    )
    oauth_token: OptionalSecret = optional(
        "Subscription's token instead; also read from CLAUDE_CODE_OAUTH_TOKEN."
    )
    base_url: Url = optional("URL of the model API; none: the public one.")
    model: OptionalText = optional("Model of agents whose definition names none.")
    cli_path: Annotated[Path | None, Optionally] = optional(
        "Path of the agent's command line; none: the one of the SDK."
    )
    retries: int = bounded(
        "How often a request to the model is repeated before the attempt counts as failed.",
        *(2, 0, 10),
    )
    response_timeout: Duration = bounded(
        "Time in which the model API must begin to answer.",
        *(2 * _MINUTE, _SECOND, 60 * _MINUTE),
    )
    stall_timeout: Duration = bounded(
        "Time without data after which an answer that has begun is abandoned.",
        *(_MINUTE, 10 * _SECOND, 60 * _MINUTE),
    )
    memory_per_agent: ByteSize = bounded(
        "Bytes of memory that one agent is expected to take.", 400 * MIB, MIB, 1024 * GIB
    )
    memory_ceiling: ByteSize = bounded(
        "Bytes that the agents of a worker may take together; more agents wait."
        " 0: half of the memory of the machine or its container.",
        *(ByteSize(0), ByteSize(0), 1024 * GIB),
    )
    usd_per_day: Annotated[float | None, Optionally] = optional(
        "Dollars that a tenant's agents may spend in a day (UTC).", gt=0
    )
    tokens_per_day: Annotated[int | None, Optionally] = optional(
        "Tokens that a tenant's agents may use in a day (UTC).", gt=0
    )
    minutes_per_day: Annotated[float | None, Optionally] = optional(
        "Minutes that a tenant's agents may run in a day (UTC).", gt=0
    )
    allow_bypass: bool = switch(
        "Whether a definition may set bypassPermissions: any tool, without approval."
    )
    local_repositories: bool = switch("Whether a definition may name a repository on this machine.")
    preload: bool = switch(
        "Whether workers load the agent SDK at start, and not with the first agent."
    )

    @property
    def day_budget(self) -> Budget:
        """The budget of a tenant's agents for a day."""
        return Budget(
            usd=self.usd_per_day, tokens=self.tokens_per_day, minutes=self.minutes_per_day
        )

    def max_concurrent(self, memory_bytes: int | None) -> int | None:
        """How many agents a worker runs at once; None: as many as tasks.

        Args:
            memory_bytes: Memory of the machine; None: unknown.
        """
        ceiling = self.memory_ceiling or (memory_bytes or 0) // 2
        return ceiling // self.memory_per_agent if ceiling else None

    @property
    def credential(self) -> tuple[str, str] | None:
        """Kind and value of the credential, in the agent's own order of preference."""
        for kind in ("api_key", "auth_token", "oauth_token"):
            secret: SecretStr | None = getattr(self, kind)
            if secret is not None and secret.get_secret_value():
                return kind, secret.get_secret_value()
        return None


class Settings(Section):
    """All settings. ``load_settings`` fills them in; built directly, they are the defaults."""

    data_dir: Annotated[Path, AfterValidator(_expand)] = Field(
        default=Path(".longshore"), description="Directory of the database, the blobs and the key."
    )
    backend: Annotated[Literal["sqlite", "memory", "aws"], BeforeValidator(lower)] = Field(
        default="sqlite", description="Where state is kept; memory loses it when the process ends."
    )
    app: Name = Field(default="longshore", description="Name of the application in events.")
    tenant: Name = Field(default="default", description="Name of the tenant that work is for.")
    environment: Name = Field(default="dev", description="Name of the stage, like dev or prod.")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = (
        Field(default="info", description="Lowest level of the records that are logged.")
    )
    log_format: Annotated[Literal["auto", "text", "json"], BeforeValidator(lower)] = Field(
        default="auto", description="Format of log records; auto: text in a terminal, else json."
    )
    log_file: OptionalPath = optional("File that a worker or supervisor logs to instead of stderr.")
    url: OptionalText = optional("Server that the command line uses instead of the data directory.")
    api_key: OptionalSecret = optional("Key that the command line sends to a server.")
    contexts_file: Path = Field(  # expanded at use, so that the documented default has no user name
        default=Path("~/.config/longshore/contexts.json"),
        description="File in which the command line stores servers and keys.",
    )
    worker: WorkerSettings = WorkerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    retry: RetrySettings = RetrySettings()
    sizes: SizesSettings = SizesSettings()
    aws: AwsSettings = AwsSettings()
    definitions: DefinitionsSettings = DefinitionsSettings()
    health: HealthSettings = HealthSettings()
    alerts: AlertsSettings = AlertsSettings()
    api: ApiSettings = ApiSettings()
    agent: AgentSettings = AgentSettings()

    @property
    def checks_health(self) -> bool:
        """Whether this installation checks the health of running tasks."""
        if self.health.enabled == "auto":
            return self.environment != "dev"
        return self.health.enabled == "true"

    @property
    def workers_dispatch(self) -> bool:
        """Whether workers dispatch and sweep; on AWS functions do."""
        return self.backend != "aws" or not self.aws.functions

    @property
    def stop_timeout(self) -> timedelta:
        """How long a worker can take to stop. A supervisor must wait longer.

        On AWS a running poll is waited for while tasks drain: a cancelled poll can lose messages
        until they are visible again.
        """
        least = self.worker.poll_wait if self.backend == "aws" else _ZERO
        return max(self.worker.stop_timeout, least)

    def contradictions(self) -> Iterator[str]:
        if self.backend == "aws":
            yield from stage_problems(self.environment, self.worker.queues)
        if not self.checks_health:
            return
        if self.worker.renew_every >= self.health.healthy_within:
            yield (
                f"worker.renew_every ({format_value(self.worker.renew_every)}) must be shorter than"
                f" health.healthy_within ({format_value(self.health.healthy_within)}):"
                " every task would look unhealthy between two heartbeats"
            )
        if self.alerts.timeout >= self.health.every:
            yield (
                f"alerts.timeout ({format_value(self.alerts.timeout)}) must be shorter than"
                f" health.every ({format_value(self.health.every)})"
            )
