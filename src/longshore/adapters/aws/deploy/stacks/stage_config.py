"""What can be decided of a stage: read from a document such as ``infra/dev.yaml``, and checked.

Whatever is wrong is told at once and together. A name that nobody knows is an error, not a silence.
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

# As the settings have it: a stage with '-' might have the queues of another.
_STAGE = re.compile(r"[a-z][a-z0-9]{0,19}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUEUE_NAME_LIMIT = 80  # of SQS
# The times for which CloudWatch can keep logs.
_LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653)
# What Fargate can be: units of processor, and from how many to how many MiB with it.
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
    """What is watched, and who is told."""

    enabled: bool = True
    email: tuple[str, ...] = ()  # each gets a letter to confirm
    topic: str | None = None  # the ARN of an SNS topic of your own, instead
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
    """What all functions have in common."""

    python: str = "3.13"
    architecture: str = "x86_64"
    memory_mib: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """A service on ECS; there is one only if it has an image."""

    image: str | None = None
    count: int = 1
    cpu: int = 1024
    memory_mib: int = 4096
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    public_ip: bool = False
    command: tuple[str, ...] = ()  # None: that of the image
    secrets: tuple[str, ...] = ()  # variables whose values are SSM parameters of the stage
    target_group: str | None = None  # of a load balancer of your own, for the server
    hosts: tuple[str, ...] = ()  # names by which the server is called


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """One stage."""

    stage: str
    queues: tuple[str, ...] = ("default",)
    bucket: str | None = None  # None: longshore-{stage}-{account}-{region}
    schedules: bool = True  # whether the health check runs by itself; the sweeper always does
    protected: bool = True  # against being deleted; with backups of every moment
    log_retention_days: int = 30
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    worker: ContainerConfig = field(default_factory=ContainerConfig)
    server: ContainerConfig = field(default_factory=ContainerConfig)
    settings: Mapping[str, str] = field(default_factory=dict)  # of functions and containers

    @property
    def names(self) -> Names:
        """What everything is called; the bucket's name may be known to AWS alone."""
        return Names(stage=self.stage, bucket=self.bucket or "")


def read_stage_config(stage: str, document: Mapping[str, Any], origin: str) -> StageConfig:
    """What a document says of a stage.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    problems: list[str] = []
    given = _read_section(StageConfig, {**document, "stage": stage}, "", problems)
    if not problems:
        config = StageConfig(**given)
        problems = list(_check_config(config))
    if problems:
        raise ConfigurationError([f"{origin}: {problem}" for problem in problems])
    return config


def with_bucket(config: StageConfig, account: str, region: str) -> StageConfig:
    """The same with the name that the bucket has in an account, which other accounts have not."""
    return (
        config if config.bucket else replace(config, bucket=default_bucket(config, account, region))
    )


def default_bucket(config: StageConfig, account: str, region: str) -> str:
    """What the bucket is called if nobody has named it."""
    return f"longshore-{config.stage}-{account}-{region}"


def _read_section(kind: type, document: Any, path: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        problems.append(f"{path.rstrip('.') or 'the file'} must have names and values")
        return {}
    hints = get_type_hints(kind)
    known = {each.name: hints[each.name] for each in fields(kind)}
    found = {}
    for name, value in document.items():
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
            problems.append(f"nothing is called {path + str(name)!r}{hint}")
        else:
            found[name] = _value(known[name], value, f"{path}{name}", problems)
    return found


def _value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        inner = _read_section(kind, {} if value is None else value, f"{path}.", problems)
        return kind(**inner)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None:
            return None
        kind = next(each for each in arguments if each is not type(None))
        return _value(kind, value, path, problems)
    if origin is tuple:
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        problems.append(f"{path} must be a list of words, not {value!r}")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        return _settings(value, path, problems)
    # A boolean is an int to Python, and `count: yes` is surely a mistake.
    elif type(value) is kind:
        return value
    else:
        words = {bool: "true or false", int: "a whole number", str: "a word (in quotes?)"}
        problems.append(f"{path} must be {words[kind]}, not {value!r}")
    return None


def _settings(value: Any, path: str, problems: list[str]) -> dict[str, str]:
    if not isinstance(value, Mapping):
        problems.append(f"{path} must have names of settings and their values")
        return {}
    problems += [
        f"{path}: {name!r} is no setting: write it like worker.task_timeout"
        for name in value
        if not _SETTING.fullmatch(str(name))
    ]
    return {str(name): _setting_text(each) for name, each in value.items()}


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_config(config: StageConfig) -> Iterator[str]:
    if not _STAGE.fullmatch(config.stage):
        yield (
            f"{config.stage!r} is no name for a stage: use at most 20 small letters and digits,"
            " the first a letter"
        )
    if config.bucket is not None and not _BUCKET.fullmatch(config.bucket):
        yield f"bucket: {config.bucket!r} is no name that S3 takes"
    yield from _queue_problems(config)
    if config.log_retention_days not in _LOG_RETENTION_DAYS:
        asked = config.log_retention_days
        near = min(_LOG_RETENTION_DAYS, key=lambda each: abs(each - asked))
        yield f"log_retention_days: CloudWatch keeps logs for {near} days, not for {asked}"
    yield from _check_range(
        "alarms.oldest_message_minutes", config.alarms.oldest_message_minutes, 1, 1440
    )
    if config.alarms.topic and config.alarms.email:
        yield "alarms: name a topic of your own or addresses for email, not both"
    yield from _check_range("api.requests_per_second", config.api.requests_per_second, 1, 10_000)
    yield from _check_range("api.burst", config.api.burst, 1, 5_000)
    yield from _function_problems(config.functions)
    yield from _container_problems("worker", config.worker)
    yield from _container_problems("server", config.server)


def _queue_problems(config: StageConfig) -> Iterator[str]:
    if not config.queues:
        yield "queues: name at least one"
    if len(set(config.queues)) < len(config.queues):
        yield "queues: each once"
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
        yield f"{name}.subnets: name those in which it runs"
    if config.image and not config.security_groups:
        yield f"{name}.security_groups: name at least one"


def _check_range(name: str, value: int, low: int, high: int) -> Iterator[str]:
    if not low <= value <= high:
        yield f"{name} must be {low} to {high}, not {value}"
