"""The configuration of a stage, read from a document such as ``infra/dev.yaml`` and validated.

All problems are reported together. An unknown name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from longshore.adapters.aws.names import Names
from longshore.core.ids import is_name
from longshore.core.tasks.states import Priority
from longshore.errors import ConfigurationError

# As in the settings: with '-', the queues of two stages could have the same names.
_STAGE = re.compile(r"[a-z][a-z0-9]{0,19}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUEUE_NAME_LIMIT = 80  # of SQS
# The retention times of CloudWatch.
_LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653)
# The sizes of Fargate: CPU units, and the range of MiB with each.
_FARGATE_MEMORY_MIB = {
    256: (512, 2048),
    512: (1024, 4096),
    1024: (2048, 8192),
    2048: (4096, 16_384),
}
_FARGATE_MEMORY_MIB |= {4096: (8192, 30_720), 8192: (16_384, 61_440), 16_384: (32_768, 122_880)}
_FARGATE_MEMORY_STEP_MIB = {8192: 4096, 16_384: 8192}
ARCHITECTURES: Final = ("x86_64", "arm64")
PYTHONS: Final = ("3.12", "3.13")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmsConfig:
    """Alarms and their receivers."""

    enabled: bool = True
    email: tuple[str, ...] = ()  # each address must confirm
    topic: str | None = None  # the ARN of your own SNS topic instead
    oldest_message_minutes: int = 15

    @property
    def has_topic(self) -> bool:
        """Whether alarms notify people."""
        return self.enabled and bool(self.topic or self.email)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The API behind API Gateway."""

    requests_per_second: int = 100
    burst: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionsConfig:
    """Common properties of all functions."""

    python: str = "3.13"
    architecture: str = "x86_64"
    memory_mib: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """A service on ECS; it is deployed only if it has an image."""

    image: str | None = None
    count: int = 1
    cpu: int = 1024
    memory_mib: int = 4096
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    public_ip: bool = False
    command: tuple[str, ...] = ()  # empty: Longshore's own
    secrets: tuple[str, ...] = ()  # variables whose values are SSM parameters of the stage
    target_group: str | None = None  # of your own load balancer, for the server
    hosts: tuple[str, ...] = ()  # host names of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """The configuration of a stage."""

    stage: str
    queues: tuple[str, ...] = ("default",)
    bucket: str | None = None  # None: longshore-{stage}-{account}-{region}
    schedules: bool = True  # whether the health check is scheduled; the sweeper always is
    protected: bool = True  # against deletion; with point-in-time recovery
    log_retention_days: int = 30
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    worker: ContainerConfig = field(default_factory=ContainerConfig)
    server: ContainerConfig = field(default_factory=ContainerConfig)
    settings: Mapping[str, str] = field(default_factory=dict)  # of functions and containers

    @property
    def names(self) -> Names:
        """The names of the resources; the default bucket needs account and region."""
        return Names(stage=self.stage, bucket=self.bucket or "")


def read_stage_config(stage: str, document: Mapping[str, Any], origin: str) -> StageConfig:
    """Read the document of a stage.

    Raises:
        ConfigurationError: with all problems.
    """
    problems: list[str] = []
    values = _read_section(StageConfig, {**document, "stage": stage}, "", problems)
    if not problems:
        config = StageConfig(**values)
        problems = list(_check_config(config))
    if problems:
        raise ConfigurationError([f"{origin}: {problem}" for problem in problems])
    return config


def with_bucket(config: StageConfig, account: str, region: str) -> StageConfig:
    """The configuration with the name of the bucket, which contains account and region."""
    return (
        config if config.bucket else replace(config, bucket=default_bucket(config, account, region))
    )


def default_bucket(config: StageConfig, account: str, region: str) -> str:
    """The default name of the bucket."""
    return f"longshore-{config.stage}-{account}-{region}"


def _read_section(kind: type, document: Any, path: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        problems.append(f"{path.rstrip('.') or 'the file'} must be a mapping")
        return {}
    hints = get_type_hints(kind)
    types = {item.name: hints[item.name] for item in fields(kind)}
    values = {}
    for name, value in document.items():
        if name not in types:
            close = get_close_matches(str(name), types, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(types)}"
            problems.append(f"unknown name {path + str(name)!r}{hint}")
        else:
            values[name] = _value(types[name], value, f"{path}{name}", problems)
    return values


def _value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        inner = _read_section(kind, {} if value is None else value, f"{path}.", problems)
        return kind(**inner)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None:
            return None
        kind = next(option for option in arguments if option is not type(None))
        return _value(kind, value, path, problems)
    if origin is tuple:
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        problems.append(f"{path} must be a list of strings, not {value!r}")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        return _settings(value, path, problems)
    # A boolean is an int in Python, but `count: yes` is a mistake.
    elif type(value) is kind:
        return value
    else:
        expected = {bool: "true or false", int: "a whole number", str: "a string (in quotes?)"}
        problems.append(f"{path} must be {expected[kind]}, not {value!r}")
    return None


def _settings(value: Any, path: str, problems: list[str]) -> dict[str, str]:
    if not isinstance(value, Mapping):
        problems.append(f"{path} must map names of settings to values")
        return {}
    problems += [
        f"{path}: {name!r} is not a setting name, such as worker.task_timeout"
        for name in value
        if not _SETTING.fullmatch(str(name))
    ]
    return {str(name): _setting_text(setting) for name, setting in value.items()}


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_config(config: StageConfig) -> Iterator[str]:
    if not _STAGE.fullmatch(config.stage):
        yield (
            f"{config.stage!r} is not a valid stage name: use at most 20 lower-case letters and"
            " digits, starting with a letter"
        )
    if config.bucket is not None and not _BUCKET.fullmatch(config.bucket):
        yield f"bucket: {config.bucket!r} is not a valid bucket name"
    yield from _queue_problems(config)
    if config.log_retention_days not in _LOG_RETENTION_DAYS:
        days = config.log_retention_days
        near = min(_LOG_RETENTION_DAYS, key=lambda option: abs(option - days))
        yield f"log_retention_days: CloudWatch has {near} days, not {days}"
    yield from _check_range(
        "alarms.oldest_message_minutes", config.alarms.oldest_message_minutes, 1, 1440
    )
    if config.alarms.topic and config.alarms.email:
        yield "alarms: set a topic or email addresses, not both"
    yield from _check_range("api.requests_per_second", config.api.requests_per_second, 1, 10_000)
    yield from _check_range("api.burst", config.api.burst, 1, 5_000)
    yield from _function_problems(config.functions)
    yield from _container_problems("worker", config.worker)
    yield from _container_problems("server", config.server)


def _queue_problems(config: StageConfig) -> Iterator[str]:
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


def _function_problems(config: FunctionsConfig) -> Iterator[str]:
    if config.python not in PYTHONS:
        yield f"functions.python must be one of {', '.join(PYTHONS)}, not {config.python!r}"
    if config.architecture not in ARCHITECTURES:
        yield f"functions.architecture must be one of {', '.join(ARCHITECTURES)}"
    yield from _check_range("functions.memory_mib", config.memory_mib, 256, 10_240)


def _container_problems(name: str, config: ContainerConfig) -> Iterator[str]:
    yield from _check_range(f"{name}.count", config.count, 0, 1_000)
    for variable in config.secrets:
        if not _VARIABLE.fullmatch(variable):
            yield f"{name}.secrets: {variable!r} is not the name of a variable"
    least, most = _FARGATE_MEMORY_MIB.get(config.cpu, (0, 0))
    step = _FARGATE_MEMORY_STEP_MIB.get(config.cpu, 1024)
    smallest_of_all = config.cpu == min(_FARGATE_MEMORY_MIB) and config.memory_mib == least
    if not most:
        sizes = ", ".join(map(str, _FARGATE_MEMORY_MIB))
        yield f"{name}.cpu: Fargate has {sizes}, not {config.cpu}"
    elif not (least <= config.memory_mib <= most and config.memory_mib % step == 0) and not (
        smallest_of_all
    ):
        yield (
            f"{name}.memory_mib: with {config.cpu} units of cpu, Fargate has {least} to {most} in"
            f" steps of {step}, not {config.memory_mib}"
        )
    if config.image and not config.subnets:
        yield f"{name}.subnets: at least one is required"
    if config.image and not config.security_groups:
        yield f"{name}.security_groups: at least one is required"


def _check_range(name: str, value: int, low: int, high: int) -> Iterator[str]:
    if not low <= value <= high:
        yield f"{name} must be {low} to {high}, not {value}"
