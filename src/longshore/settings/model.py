"""What can be set: each setting with its type, unit, bounds and description.

The reference page and ``longshore settings`` are generated from these classes; the docstring of a
setting is its description. Where a section has
a policy of ``core`` as its base class, the section is that policy: the policy gives the defaults
and checks which values contradict each other.

Tokens, signing secrets and webhook URLs are secrets: each of them is enough to write to the
channel. They are ``SecretStr``, and an error message never quotes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import time, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast, dataclass_transform
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    model_validator,
)
from pydantic.dataclasses import dataclass

from longshore.core.api_keys import Rate
from longshore.core.budgets import Budget
from longshore.core.health import HealthPolicy
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.supervision import SupervisionPolicy
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.text.durations import format_duration, parse_duration

# How a setting is declared, read from text and shown ---------------------------------------------

NONE: Final = "none"
"""How a setting without a value is written: an empty variable counts as not set."""
KIB, MIB, GIB = ByteSize(2**10), ByteSize(2**20), ByteSize(2**30)
T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are settings; a core policy is a base class of its section.

    Inputs are left out of pydantic's own errors, because some of them are secrets.
    """
    config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    return cast("type[T]", dataclass(frozen=True, kw_only=True, config=config)(kind))


def setting(default: Any, least: Any, most: Any) -> Any:
    """A setting with its default and its inclusive bounds."""
    return Field(default=default, ge=least, le=most)


def plain_problem(text: str) -> str:
    """Returns a message of pydantic in the words of other messages."""
    text = text.replace("Value error, ", "").replace("Input should be", "must be")
    return text.replace("valid integer, unable to parse string as an integer", "whole number")


def checked(is_valid: Callable[[str], object], problem: str) -> AfterValidator:
    """Refuses a text or secret that is not valid; ``problem`` may contain ``{value!r}``."""

    def check(value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and not is_valid(text):
            raise ValueError(problem.format(value=value))
        return value

    return AfterValidator(check)


def _lower(value: object) -> object:
    return str(value).lower() if isinstance(value, str | bool) else value


def _split_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip() and value != NONE]


Choice = BeforeValidator(_lower)
"""Accepts a choice in any case, and a truth value for ``true`` and ``false``."""
Listed = BeforeValidator(_split_list)
"""Accepts a list that is written as one text, as in the environment: ``a,b``, or ``none``."""
Optionally = BeforeValidator(lambda value: None if value == NONE else value)
"""Accepts ``none`` for a value that may be missing."""
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
OptionalText = Annotated[str | None, Optionally]
OptionalSecret = Annotated[SecretStr | None, Optionally]


def format_value(value: object) -> str:
    """A setting's value as it is written in a file, with its unit. Secrets are masked."""
    match value:
        case timedelta():
            return format_duration(value)
        case ByteSize():
            for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
                if value and value % size == 0:
                    return f"{value // size}{unit}"
            return f"{int(value)}B"
        case tuple():
            return ",".join(str(item) for item in value) or NONE
        case time():
            return value.isoformat("seconds" if value.second else "minutes")
        case None:
            return NONE
        case bool():
            return str(value).lower()
    return str(value)


# Values and their checks -------------------------------------------------------------------------

DEFAULT_PASS_ENVIRONMENT: Final = (
    *("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PWD"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY"),
    *("LC_NUMERIC", "LC_TIME", "TERM", "COLORTERM", "FORCE_COLOR", "NODE_ENV"),
    *("CLAUDE_CODE_PATH", "CLAUDE_CONFIG_DIR", "CLAUDE_TIMEOUT", "MAX_CONCURRENT_CLAUDE"),
    *("CLAUDE_SKIP_PERMISSIONS", "AWS_REGION", "S3_BUCKET", "DELETE_FILES_AFTER_UPLOAD"),
    *("EVENTBRIDGE_BUS_NAME", "TENANT_ID", "APP_NAME", "TASK_DEFINITIONS_TABLE"),
)
# Only a definition can pass these to a task: see `worker.task_secrets`.
_CREDENTIALS = {
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("LONGSHORE_AGENT_API_KEY", "LONGSHORE_AGENT_AUTH_TOKEN", "LONGSHORE_AGENT_OAUTH_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("LONGSHORE_ALERTS_SLACK_TOKEN", "LONGSHORE_ALERTS_SLACK_WEBHOOK"),
    *("LONGSHORE_ALERTS_WEBHOOK_URL", "LONGSHORE_ALERTS_WEBHOOK_SECRETS"),
    *("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL"),
}
_SECRET_MIN_BYTES: Final = 32
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN_AS = re.compile(rf"({NAME_PATTERN.pattern}=)?[A-Za-z0-9_][A-Za-z0-9_.-]{{0,31}}")
_URL_AS_PATH = re.compile(r"[a-z][a-z0-9+.-]+:/")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"\*|[A-Za-z0-9.-]{1,253}|[0-9A-Fa-f:]{2,45}")
_CHANNEL = re.compile(r"#?[^\s#<>&]{1,80}")
_TIME_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
# Names of functions, stacks and buckets have a stage in them, each with a limit of its own. And a
# stage `prod-eu` would have the queues that a queue `eu` of a stage `prod` has.
_STAGE = re.compile(r"[a-z][a-z0-9]{0,19}")
_QUEUE_NAME_LIMIT: Final = 80  # of SQS
_LEASE, _RETRY = LeasePolicy(), RetryPolicy()
_HEALTH, _SUPERVISION = HealthPolicy(), SupervisionPolicy()
_ZERO, _TICK, _SECOND = timedelta(0), timedelta(milliseconds=1), timedelta(seconds=1)
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_YEAR = 365 * _DAY


def _check_time_of_day(value: object) -> object:
    # pydantic would read a number as seconds.
    if value is None or _TIME_OF_DAY.fullmatch(str(value)):
        return value
    raise ValueError(f"{value!r} is not a time of day: write it like 03:30")


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{','.join(names)!r} must have at least one name, and none twice")
    return names


def _check_run_as(entries: tuple[str, ...]) -> tuple[str, ...]:
    tenants = [entry.rpartition("=")[0] for entry in entries]
    if len(set(tenants)) < len(tenants):
        raise ValueError(f"{','.join(entries)!r} must have one user for each tenant, and one USER")
    return entries


def _expand(path: Path | None) -> Path | None:
    try:
        return path and path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r} has no home directory") from error


def _is_url(url: str, schemes: tuple[str, ...]) -> bool:
    if not _VISIBLE.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = "@" not in parts.netloc and not parts.fragment and port != 0
    return parts.scheme in schemes and bool(parts.hostname) and plain


def _secret_url(*schemes: str) -> AfterValidator:
    return checked(
        partial(_is_url, schemes=schemes),
        f"must be a URL that begins with {' or '.join(schemes)}:// and has a host",
    )


Name = Annotated[
    str, checked(is_name, "{value!r} is not a name: use 1 to 64 letters, digits, '-' and '_'")
]
Variable = Annotated[
    str,
    checked(_VARIABLE.fullmatch, "{value!r} is not a variable name"),
    checked(
        lambda name: name not in _CREDENTIALS,
        "{value} is a credential, which is not passed to every task; list it in"
        " worker.task_secrets, for definitions that ask for it with {{from: NAME}} in their env",
    ),
]
RunAs = Annotated[
    str,
    checked(
        _RUN_AS.fullmatch, "{value!r} is not a user: write USER or TENANT=USER, by name or number"
    ),
]
SecretName = Annotated[str, checked(_VARIABLE.fullmatch, "{value!r} is not a variable name")]
Module = Annotated[
    str,
    checked(
        lambda name: all(part.isidentifier() for part in name.split(".")),
        "{value!r} is not a module name: write it as in an import, like shop.tasks",
    ),
]
Host = Annotated[
    str,
    checked(_HOST.fullmatch, "{value!r} is not a host name or an IP address"),
    AfterValidator(str.lower),
]
Url = Annotated[
    OptionalText,
    checked(
        lambda url: url.startswith(("http://", "https://")),
        "{value!r} is not a URL: write it like https://api.example.com",
    ),
]
# An HTTP header cannot contain other characters, and a library's error would quote the token.
Token = Annotated[
    OptionalSecret, checked(_VISIBLE.fullmatch, "a token has only visible ASCII characters")
]
SigningSecret = Annotated[
    SecretStr,
    checked(
        lambda secret: len(secret.encode()) >= _SECRET_MIN_BYTES,
        f"a signing secret must have at least {_SECRET_MIN_BYTES} bytes",
    ),
]
Channel = Annotated[
    OptionalText,
    checked(
        _CHANNEL.fullmatch,
        "{value!r} is not a channel: give its id, like C0123456789, or #its-name",
    ),
]
OptionalPath = Annotated[Path | None, Optionally, AfterValidator(_expand)]


@section
class WorkerSettings(LeasePolicy):
    """How a worker takes tasks, runs them and stops."""

    concurrency: int = setting(3, 1, 1_000)
    """How many tasks a worker runs at the same time."""
    queues: Annotated[tuple[Name, ...], Listed, AfterValidator(_check_unique)] = ("default",)
    """Queues that a worker serves."""
    app: Annotated[tuple[Module, ...], Listed] = ()
    """Modules that a worker imports once, so that their tasks start faster."""
    renew_every: Duration = setting(_LEASE.renew_every, _TICK, _HOUR)
    """Interval between two renewals of a lease."""
    # At most two thirds of the 12 hours for which SQS can hide a message.
    extend_by: Duration = setting(_LEASE.extend_by, _TICK, 8 * _HOUR)
    """How long a renewal hides the message; the lease is valid for 1.5 times as long."""
    task_timeout: Duration = setting(_HOUR, _TICK, 30 * _DAY)
    """Time limit of an attempt, unless its definition or `longshore run --timeout` sets one."""
    kill_grace: Duration = setting(_LEASE.kill_grace, _ZERO, _HOUR)
    """Time from SIGTERM to SIGKILL when an attempt is stopped."""
    drain_grace: Duration = setting(30 * _SECOND, _ZERO, _DAY)
    """Time running attempts get when the worker is stopped."""
    skew_margin: Duration = setting(_LEASE.skew_margin, _ZERO, _HOUR)
    """Time by which the clocks of two machines may differ."""
    # SQS waits no longer than this.
    poll_wait: Duration = setting(20 * _SECOND, _ZERO, 20 * _SECOND)
    """Time a poll of an empty queue waits for a message."""
    run_as: Annotated[tuple[RunAs, ...], Listed, AfterValidator(_check_run_as)] = ()
    """Users as which tasks run: USER for all tenants, TENANT=USER for one; none: as the worker."""
    keep_work_dirs: bool = False
    """Whether the working directory of an attempt is kept after the attempt has ended."""
    max_processes: int = setting(1_000, 0, 1_000_000)
    """Maximum processes of an attempt at a time, unless its definition sets it; 0: no limit."""
    pass_environment: Annotated[tuple[Variable, ...], Listed] = DEFAULT_PASS_ENVIRONMENT
    """Variables that are passed to tasks; replaces the default list."""
    task_secrets: Annotated[tuple[SecretName, ...], Listed] = ()
    """Names of secrets that definitions may give to their tasks, as in `env: {X: {from: NAME}}`."""


@section
class SupervisorSettings:
    """How worker processes are kept running; a time of day is local time."""

    processes: int = setting(0, 0, 1_000)
    """Number of worker processes that a supervisor runs; 0: no supervisor."""
    restart_delay: Duration = setting(_SUPERVISION.restart_delay, _ZERO, _HOUR)
    """Time before a worker that ended is started again."""
    restart_limit: int = setting(_SUPERVISION.restart_limit, 1, 1_000_000)
    """How many workers in a row may end within 10 s before the supervisor gives up."""
    memory_ceiling: ByteSize = setting(
        ByteSize(_SUPERVISION.memory_ceiling_bytes), ByteSize(0), 1024 * GIB
    )
    """Bytes of memory beyond which a worker process is recycled; 0 sets no ceiling."""
    recycle_at: Annotated[time | None, BeforeValidator(_check_time_of_day), Optionally] = (
        _SUPERVISION.recycle_at
    )
    """Time of day, such as 03:30, at which workers are recycled one after another."""


@section
class RetrySettings(RetryPolicy):
    """How many attempts a task has, and the time between them."""

    max_attempts: int = setting(_RETRY.max_attempts, 1, 100)
    """Maximum attempts of a task, unless its definition sets it."""
    base: Duration = setting(_RETRY.base, _TICK, _HOUR)
    """Maximum delay before attempt 2; doubles with each attempt."""
    cap: Duration = setting(_RETRY.cap, _TICK, _DAY)
    """Maximum delay between two attempts."""
    rate_limit_wait: Duration = setting(_RETRY.rate_limit_wait, _ZERO, 30 * _DAY)
    """Maximum total wait of a task for rate limits that name a wait; these use no attempt."""

    @property
    def plain(self) -> RetryPolicy:
        """The policy as tasks store it."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            base=self.base,
            cap=self.cap,
            rate_limit_wait=self.rate_limit_wait,
        )


@section
class DefinitionsSettings:
    """Where `longshore up` reads definition files."""

    folder: OptionalPath = Path()
    """Directory of longshore.yaml and definitions/; none: no files are read."""
    watch_every: Duration = setting(_SECOND, _ZERO, _HOUR)
    """Time between two checks for changed files; 0: files are read only at the start."""


@section
class SizesSettings:
    """Limits on sizes and numbers."""

    max_tasks_per_job: int = setting(MAX_TASKS_PER_JOB, 1, 100_000)
    """Maximum number of tasks in a job."""
    input_bytes: ByteSize = setting(ByteSize(50 * MIB), KIB, GIB)
    """Maximum size of an input."""
    result_bytes: ByteSize = setting(ByteSize(50 * MIB), KIB, GIB)
    """Maximum size of a result."""
    inline_result_bytes: ByteSize = setting(KIB, KIB, 64 * KIB)
    """Results up to this size are in the row and in events, longer ones in the blob store."""
    output_bytes_per_attempt: ByteSize = setting(ByteSize(100 * MIB), KIB, 100 * GIB)
    """Maximum output of an attempt; the rest is dropped."""
    artifact_bytes_per_attempt: ByteSize = setting(GIB, ByteSize(0), 1_000 * GIB)
    """Maximum size of all artifacts of an attempt."""


@section
class RetentionSettings:
    """How long ended jobs and other events are kept."""

    jobs: Duration = setting(90 * _DAY, _ZERO, 10 * _YEAR)
    """Time after its end at which a job is removed, with all that belongs to it; 0: never. Its
    request id is remembered for as long again, and for a day at least."""
    other_events: Duration = setting(90 * _DAY, _ZERO, 10 * _YEAR)
    """Age at which events that belong to no job are removed, such as those of queues, of operators
    and of the health check; 0: never. The last event of each stays."""


@section
class ApiSettings:
    """Where the API listens, and the limits of a request."""

    host: Host = "127.0.0.1"
    """Address that the API listens on."""
    port: int = setting(8421, 0, 65_535)
    """Port that the API listens on; 0: any free port."""
    hosts: Annotated[tuple[Host, ...], Listed, Field(min_length=1)] = (
        "127.0.0.1",
        "localhost",
        "::1",
    )
    """Host names that requests may use for the server; * allows any."""
    body_bytes: ByteSize = setting(ByteSize(16 * MIB), KIB, 1024 * MIB)
    """Maximum size of a request body; half of it for one that is not all ASCII."""
    requests_per_second: int = setting(100, 1, 1_000_000)
    """Maximum number of requests per second and key."""
    burst: int = setting(500, 1, 1_000_000)
    """Maximum burst of requests per key."""
    builtin_definitions: bool = True
    """Whether jobs that come over the API may use the built-in `command` and `python`, which run
    what the job names; otherwise only stored definitions."""
    access_log: bool = False
    """Whether each request is logged: key id, tenant, method, path, status, time and bytes."""
    streams_per_key: int = setting(250, 1, 16_384)
    """Maximum number of open streams per key; each occupies a connection."""

    @property
    def rate(self) -> Rate:
        """How often a key may be used."""
        return Rate(per_second=self.requests_per_second, burst=self.burst)


@section
class AgentSettings:
    """How agent tasks reach their model, and what they may do on this machine."""

    api_key: OptionalSecret = None
    """Key for the model API; also read from ANTHROPIC_API_KEY."""
    auth_token: OptionalSecret = None
    """Bearer token instead of an API key; also read from ANTHROPIC_AUTH_TOKEN."""
    oauth_token: OptionalSecret = None
    """Subscription token instead of an API key; also read from CLAUDE_CODE_OAUTH_TOKEN."""
    base_url: Url = None
    """URL of the model API; none: the public one."""
    model: OptionalText = None
    """Model of agents whose definition sets none."""
    cli_path: Annotated[Path | None, Optionally] = None
    """Path of the agent's command line; none: the one of the SDK."""
    retries: int = setting(2, 0, 10)
    """How often a request to the model is retried before the attempt fails."""
    response_timeout: Duration = setting(2 * _MINUTE, _SECOND, 60 * _MINUTE)
    """Time in which the model API must begin to answer."""
    stall_timeout: Duration = setting(_MINUTE, 10 * _SECOND, 60 * _MINUTE)
    """Time without data after which an answer that has begun is abandoned."""
    memory_per_agent: ByteSize = setting(ByteSize(400 * MIB), MIB, 1024 * GIB)
    """Memory that is reserved for each agent."""
    memory_ceiling: ByteSize = setting(ByteSize(0), ByteSize(0), 1024 * GIB)
    """Memory that the agents of a worker may use together; further agents wait. 0: half of the
    memory of the machine or its container."""
    usd_per_day: Annotated[PositiveFloat | None, Optionally] = None
    """Dollars that a tenant's agents may spend in a day (UTC)."""
    tokens_per_day: Annotated[PositiveInt | None, Optionally] = None
    """Tokens that a tenant's agents may use in a day (UTC)."""
    minutes_per_day: Annotated[PositiveFloat | None, Optionally] = None
    """Minutes that a tenant's agents may run in a day (UTC)."""
    allow_bypass: bool = False
    """Whether a definition may set bypassPermissions: any tool, without approval."""
    local_repositories: bool = False
    """Whether a definition may name a repository on this machine."""
    repository_hosts: Annotated[tuple[Host, ...], Listed] = ()
    """Hosts of the repositories that a definition may name; empty: any host."""
    preload: bool = False
    """Whether workers load the agent SDK at startup instead of with the first agent."""

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
            if secret := getattr(self, kind):
                return kind, secret.get_secret_value()
        return None


@section
class AwsSettings:
    """Where the installation is. Credentials are found as by other AWS tools."""

    region: OptionalText = None
    """Region of the installation; none: that of the AWS profile."""
    bucket: OptionalText = None
    """Bucket of the blobs, as `longshore aws deploy` names it."""
    endpoint_url: OptionalText = None
    """Endpoint of an AWS emulator, for tests."""
    shards: int = setting(4, 1, 256)
    """Partitions that index keys are spread over; can be raised, but never lowered."""
    functions: bool = True
    """Whether Lambda functions dispatch and sweep, as `longshore aws deploy` sets up; otherwise
    workers do."""
    event_indexes: Literal["few", "all"] = "few"
    """Indexes of the event table that are filled. `few`: those that Longshore reads, a quarter of
    the writes. `all`: all seven, for external queries; cannot be changed back."""
    heartbeat_every: Duration = setting(5 * _MINUTE, _SECOND, 12 * _HOUR)
    """Interval that `longshore.aws.heartbeat_interval_sec()` returns for `SQSHeartbeat`."""


@section
class HealthSettings(HealthPolicy):
    """When a running task counts as healthy, and how often that is checked."""

    enabled: Annotated[Literal["auto", "true", "false"], Choice] = "auto"
    """Whether health is checked regularly; auto: unless the environment is dev."""
    every: Duration = setting(300 * _SECOND, _SECOND, _DAY)
    """Time between two checks."""
    longest_run: Duration = setting(_HEALTH.longest_run, _SECOND, _YEAR)
    """Time an attempt may run before it counts as overtime."""
    healthy_within: Duration = setting(_HEALTH.healthy_within, _SECOND, _YEAR)
    """Time since its last event up to which a task is healthy."""
    warning_within: Duration = setting(_HEALTH.warning_within, _SECOND, _YEAR)
    """Time since its last event up to which there is only a warning."""
    cool_down: Duration = setting(_HOUR, _ZERO, _YEAR)
    """Time before an unchanged problem is reported again."""


@section
class AlertsSettings:
    """Where alerts about unhealthy tasks are sent; without a channel there are none."""

    slack_token: Token = None
    """Token of the bot that posts to the Slack channel."""
    slack_channel: Channel = None
    """Slack channel to post to: its ID (recommended) or name."""
    slack_webhook: Annotated[OptionalSecret, _secret_url("https")] = None
    """Incoming webhook of Slack, instead of a bot."""
    webhook_url: Annotated[OptionalSecret, _secret_url("https", "http")] = None
    """URL that signed JSON is sent to."""
    webhook_secrets: Annotated[tuple[SigningSecret, ...], Listed] = ()
    """Secrets that sign the JSON; set two while you rotate them."""
    timeout: Duration = setting(20 * _SECOND, _SECOND, _HOUR)
    """Time limit for sending all alerts of a check."""

    def __post_init__(self) -> None:
        pairs = (
            ("slack_token", "slack_channel", ", which the bot writes to"),
            ("slack_channel", "slack_token", "; an incoming webhook has its own channel"),
            ("webhook_url", "webhook_secrets", ", which sign the JSON"),
            ("webhook_secrets", "webhook_url", ", where the JSON is sent"),
        )
        for name, other, reason in pairs:
            if getattr(self, name) and not getattr(self, other):
                raise ValueError(f"{name} needs {other}{reason}")
        if self.slack_token and self.slack_webhook:
            raise ValueError("slack_token and slack_webhook would both alert: set one of them")


@section
class Settings:
    """All settings. ``load_settings`` fills them in; built directly, they are the defaults."""

    data_dir: Annotated[
        Path,
        AfterValidator(_expand),
        checked(
            lambda path: not _URL_AS_PATH.match(str(path)),
            "'{value}' is a URL, not a folder; the command line reaches a server with --server",
        ),
    ] = Path(".longshore")
    """Data folder: the database, the blobs and the folders of attempts."""
    backend: Annotated[Literal["sqlite", "aws"], Choice] = "sqlite"
    """Where state is kept: in the data folder, or on AWS."""
    app: Name = "longshore"
    """Name of the application in events."""
    tenant: Name = "default"
    """Tenant that commands work for."""
    environment: Name = "dev"
    """Name of the stage; in dev, health is not checked by default."""
    compat_env: bool = False
    """Whether variables of other systems, such as TENANT_ID and S3_BUCKET, are read."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Choice] = "info"
    """Lowest level of the records that are logged."""
    log_format: Annotated[Literal["auto", "text", "json"], Choice] = "auto"
    """Format of log records; auto: text in a terminal, else json."""
    log_file: OptionalPath = None
    """File that a worker or supervisor logs to instead of stderr."""
    url: OptionalText = None
    """Server that the command line uses instead of the data directory."""
    api_key: OptionalSecret = None
    """Key that the command line sends to a server."""
    # Expanded at use: the documented default has no user name.
    contexts_file: Path = Path("~/.config/longshore/contexts.json")
    """File in which the command line stores servers and keys."""
    keys_dir: Path = Path("~/.config/longshore/keys")
    """Folder in which servers on this machine store the API keys that they create for themselves.
    It must not be in the data folder, where tasks run."""
    worker: WorkerSettings = WorkerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    retry: RetrySettings = RetrySettings()
    sizes: SizesSettings = SizesSettings()
    retention: RetentionSettings = RetentionSettings()
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
        return max(self.worker.drain_grace + self.worker.kill_grace, least)

    @property
    def stop_deadline(self) -> timedelta:
        """How long a process may stop before it ends itself, even if something hangs.

        A worker tries to store outcomes until their leases end.
        """
        return self.stop_timeout + self.worker.duration + 10 * _SECOND

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Check settings of different sections against each other."""
        worker, health, problems = self.worker, self.health, []
        if self.backend == "aws":
            problems += self._name_problems()
        if self.checks_health and worker.renew_every >= health.healthy_within:
            problems.append(
                f"worker.renew_every ({format_value(worker.renew_every)}) must be shorter than"
                f" health.healthy_within ({format_value(health.healthy_within)}):"
                " every task would look unhealthy between two heartbeats"
            )
        if self.checks_health and self.alerts.timeout >= health.every:
            problems.append(
                f"alerts.timeout ({format_value(self.alerts.timeout)}) must be shorter than"
                f" health.every ({format_value(health.every)})"
            )
        if problems:
            raise ValueError(*problems)
        return self

    def _name_problems(self) -> list[str]:
        """Why an installation on AWS cannot have this stage or these queues."""
        stage = self.environment
        longest_names = {
            queue: f"longshore-{stage}-{queue}-normal-dead" for queue in self.worker.queues
        }
        problems = [
            f"worker.queues ({queue}) is too long for AWS by {len(name) - _QUEUE_NAME_LIMIT}"
            f" characters: SQS would have to call a queue {name}, and takes {_QUEUE_NAME_LIMIT}"
            for queue, name in longest_names.items()
            if len(name) > _QUEUE_NAME_LIMIT
        ]
        if not _STAGE.fullmatch(stage):
            problems.append(
                f"environment ({stage}) is a part of every name on AWS: use 1 to 20 lower-case"
                " letters and digits, a letter first, and no '-': `prod-eu` is `prodeu`"
            )
        return problems
