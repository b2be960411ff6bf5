"""The configuration of a stage, read from a document such as ``infra/dev.yaml`` and validated.

All problems are reported together. An unknown name is an error.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from longshore.adapters.aws.events.event_log import ALL_INDEXES, DEFAULT_INDEXES
from longshore.adapters.aws.names import Names
from longshore.core.ids import is_name
from longshore.core.inspection import CloudAccount
from longshore.core.tasks.states import Priority
from longshore.errors import ConfigurationError

# As in the settings: with '-', the queues of two stages could have the same names.
_STAGE = re.compile(r"[a-z][a-z0-9]{0,19}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_QUEUE_NAME_LIMIT = 80  # of SQS
# The retention times of CloudWatch.
_LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653)
# The sizes of Fargate: CPU units, and the MiB that each can have.
_FARGATE_MEMORY_MIB = {
    256: (512, 1024, 2048),
    512: range(1024, 4097, 1024),
    1024: range(2048, 8193, 1024),
    2048: range(4096, 16_385, 1024),
    4096: range(8192, 30_721, 1024),
    8192: range(16_384, 61_441, 4096),
    16_384: range(32_768, 122_881, 8192),
}
_STRICT = ConfigDict(extra="forbid", strict=True)
_Texts = tuple[Annotated[str, Field(min_length=1)], ...]


def _setting_texts(values: object) -> object:
    """Settings as their environment variables have them."""
    if not isinstance(values, Mapping):
        return values
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return {
        name: ",".join(str(item).lower() if isinstance(item, bool) else str(item) for item in items)
        for name, items in lists.items()
    }


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AlarmsConfig:
    """Alarms and their receivers."""

    enabled: bool = True
    email: _Texts = ()  # each address must confirm
    topic: str | None = None  # the ARN of your own SNS topic instead
    oldest_message_minutes: int = Field(default=15, ge=1, le=1440)

    @property
    def oldest_message_s(self) -> int:
        return 60 * self.oldest_message_minutes


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ApiConfig:
    """The API behind API Gateway."""

    requests_per_second: int = Field(default=100, ge=1, le=10_000)
    burst: int = Field(default=200, ge=1, le=5_000)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FunctionsConfig:
    """Common properties of all functions."""

    python: Literal["3.12", "3.13"] = "3.13"
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    memory_mib: int = Field(default=512, ge=256, le=10_240)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ContainerConfig:
    """A service on ECS; it is deployed only if it has an image."""

    image: str | None = None
    count: int = Field(default=1, ge=0, le=1_000)
    cpu: int = 1024
    memory_mib: int = 4096
    subnets: _Texts = ()
    security_groups: _Texts = ()
    public_ip: bool = False
    command: _Texts = ()  # empty: Longshore's own
    # Variables whose values are SSM parameters of the stage.
    secrets: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    target_group: str | None = None  # of your own load balancer, for the server
    hosts: _Texts = ()  # host names of the server


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class StageConfig:
    """The configuration of a stage."""

    stage: str
    queues: _Texts = ("default",)
    bucket: str | None = None  # None: longshore-{stage}-{account}-{region}
    schedules: bool = True  # whether the health check is scheduled; the sweeper always is
    protected: bool = True  # against deletion; with point-in-time recovery
    log_retention_days: int = 30
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    worker: ContainerConfig = field(default_factory=ContainerConfig)
    server: ContainerConfig = field(default_factory=ContainerConfig)
    # Of functions and containers.
    settings: Annotated[dict[str, str], BeforeValidator(_setting_texts)] = field(
        default_factory=dict
    )

    @property
    def names(self) -> Names:
        """The names of the resources; the default bucket needs account and region."""
        return Names(stage=self.stage, bucket=self.bucket or "")

    @property
    def lanes(self) -> list[str]:
        """Every queue and priority, as in the names of their SQS queues."""
        return [
            f"{queue}-{priority.name.lower()}" for queue in self.queues for priority in Priority
        ]

    @property
    def event_indexes(self) -> list[int]:
        """The numbers of the event table's indexes that are filled, and so can be queried."""
        all_filled = self.settings.get("aws.event_indexes") == "all"
        return sorted(ALL_INDEXES if all_filled else DEFAULT_INDEXES)


_STAGE_CONFIG = TypeAdapter(StageConfig)


def read_stage_config(stage: str, document: Mapping[str, Any], origin: str) -> StageConfig:
    """Read the document of a stage.

    Raises:
        ConfigurationError: with all problems.
    """
    # An empty section of a YAML file is null.
    content = {name: value for name, value in document.items() if value is not None}
    try:
        # As JSON: pydantic then takes a list for a tuple, and is strict otherwise.
        config = _STAGE_CONFIG.validate_json(json.dumps({**content, "stage": stage}, default=str))
        problems = list(_check_config(config))
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors(include_url=False)]
    if problems:
        raise ConfigurationError([f"{origin}: {problem}" for problem in problems])
    return config


def _problem(detail: Any) -> str:
    """What pydantic says about a value, with its path in the document."""
    *sections, name = detail["loc"]
    if detail["type"] != "unexpected_keyword_argument":
        return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}, not {detail['input']!r}"
    section = functools.reduce(getattr, sections, StageConfig(stage="any"))
    names = [item.name for item in fields(section)]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(names)}"
    return f"unknown name {'.'.join(detail['loc'])!r}; {hint}"


def with_bucket(config: StageConfig, account: CloudAccount) -> StageConfig:
    """The configuration with the name of the bucket, which contains account and region."""
    default = f"longshore-{config.stage}-{account.id}-{account.region}"
    return replace(config, bucket=config.bucket or default)


def _check_config(config: StageConfig) -> Iterator[str]:
    """Problems that are not about a single value's type or range."""
    if not _STAGE.fullmatch(config.stage):
        yield (
            f"{config.stage!r} is not a valid stage name: use at most 20 lower-case letters and"
            " digits, starting with a letter"
        )
    if config.bucket is not None and not _BUCKET.fullmatch(config.bucket):
        yield f"bucket: {config.bucket!r} is not a valid bucket name"
    if not config.queues:
        yield "queues: at least one is required"
    if len(set(config.queues)) < len(config.queues):
        yield "queues: a name occurs twice"
    for queue in config.queues:
        longest = max(len(config.names.dead_letter_queue(queue, priority)) for priority in Priority)
        if not is_name(queue):
            yield f"queues: {queue!r} is not a name: use 1 to 64 letters, digits, '-' and '_'"
        elif (excess := longest - _QUEUE_NAME_LIMIT) > 0:
            yield f"queues: {queue!r} is too long by {excess} characters for SQS"
    if (days := config.log_retention_days) not in _LOG_RETENTION_DAYS:
        near = min(_LOG_RETENTION_DAYS, key=lambda option: abs(option - days))
        yield f"log_retention_days: CloudWatch has {near} days, not {days}"
    if config.alarms.topic and config.alarms.email:
        yield "alarms: set a topic or email addresses, not both"
    yield from _container_problems("worker", config.worker)
    yield from _container_problems("server", config.server)


def _container_problems(name: str, container: ContainerConfig) -> Iterator[str]:
    sizes = _FARGATE_MEMORY_MIB.get(container.cpu)
    if sizes is None:
        units = ", ".join(map(str, _FARGATE_MEMORY_MIB))
        yield f"{name}.cpu: Fargate has {units}, not {container.cpu}"
    elif container.memory_mib not in sizes:
        yield (
            f"{name}.memory_mib: with {container.cpu} units of cpu, Fargate has {sizes[0]} to"
            f" {sizes[-1]} in steps of {sizes[-1] - sizes[-2]}, not {container.memory_mib}"
        )
    for required in ("subnets", "security_groups"):
        if container.image and not getattr(container, required):
            yield f"{name}.{required}: at least one is required"
