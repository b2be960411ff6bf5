"""The CloudFormation templates of a stage: the files in ``templates/``, filled in.

``<name>`` in a file is a value of the stage file, such as ``<api.burst>``, or a value that this
module computes. A stack's section ``Functions`` lists its functions. Everything else is
CloudFormation. ``function.yaml``, ``queue.yaml`` and ``dead-letter-mapping.yaml`` are fragments,
which are repeated for every function or lane.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import yaml

from longshore.adapters.aws.deploy.stacks.privileges import (
    Json,
    arn,
    import_value,
    policy_statement,
    statements_of,
    sub,
)
from longshore.adapters.aws.deploy.stacks.stage_config import ContainerConfig, StageConfig

INFRASTRUCTURE: Final = "infrastructure"
STACKS: Final = (
    INFRASTRUCTURE,
    "event",
    "dispatcher",
    "health-check",
    "producer-api",
    "worker",
    "server",
)
"""The short names of the stacks, in the order of deployment.

They are deleted in the opposite order, because a stack may import what earlier ones export.
"""
CONSUMERS: Final = ("history", "dispatcher")
"""Consumers of events with a queue."""

_CONTAINER_STACKS: Final = ("worker", "server")
_LANE_FRAGMENTS: Final = {INFRASTRUCTURE: "queue", "dispatcher": "dead-letter-mapping"}
_FOLDER: Final = Path(__file__).with_name("templates")
_PLACEHOLDER: Final = re.compile(r"<([a-z_]+(?:\.[a-z_]+)*)>")
_ECR: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.(?:[a-z.]+)/(?P<repository>[^:@]+)"
)
# Every alarm is about a metric that is above its threshold in any five minutes.
_ALARM: Final = {
    "Period": 300,
    "EvaluationPeriods": 1,
    "ComparisonOperator": "GreaterThanThreshold",
    # A function that is not invoked has no metrics.
    "TreatMissingData": "notBreaching",
}


def logical_id(*words: str) -> str:
    """A name inside a template, of letters and digits only."""
    parts = "-".join(words).replace("_", "-").split("-")
    return "".join(f"{part[:1].upper()}{part[1:]}" for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaFunction:
    """A Lambda function."""

    name: str
    stack: str
    description: str
    timeout_s: int = 60
    module: str = "handlers"  # in longshore.interfaces.lambdas
    concurrency: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def handler(self) -> str:
        """The handler that Lambda calls."""
        return f"longshore.interfaces.lambdas.{self.module}.{self.name.replace('-', '_')}"

    @property
    def logical_id(self) -> str:
        return logical_id(self.name)


class _Loader(yaml.SafeLoader):
    """Reads ``!Ref``, ``!GetAtt`` and so on as JSON templates spell them."""


def _intrinsic(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Json:
    value: Any
    if isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_scalar(node)  # type: ignore[arg-type]
    if tag == "GetAtt":
        value = value.rsplit(".", 1)
    return {tag if tag == "Ref" else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _intrinsic)


@functools.cache
def _read(file: str) -> Json:
    text = (_FOLDER / f"{file}.yaml").read_text(encoding="utf-8")
    document: Json = yaml.load(text, _Loader)  # noqa: S506 - a safe loader, and our own files
    return document


def _fill(value: Any, scope: object) -> Any:
    """A part of a file with values instead of placeholders.

    A placeholder alone becomes the value itself: a number, a list, a mapping; a list inside a list
    is inserted there. A property whose value is None is left out.
    """
    match value:
        case str():
            if alone := _PLACEHOLDER.fullmatch(value):
                return attrgetter(alone[1])(scope)
            return _PLACEHOLDER.sub(lambda match: str(attrgetter(match[1])(scope)), value)
        case dict():
            filled = {_fill(key, scope): _fill(item, scope) for key, item in value.items()}
            return {key: item for key, item in filled.items() if item is not None}
        case list():
            parts = [(item, _fill(item, scope)) for item in value]
            return [
                entry
                for item, part in parts
                for entry in (part if isinstance(item, str) and isinstance(part, list) else [part])
            ]
    return value


def _filled(file: str, config: StageConfig, **values: Any) -> Json:
    """A file with the values of the stage file, and others."""
    filled: Json = _fill(_read(file), SimpleNamespace(**vars(config), **values))
    return filled


FUNCTIONS: Final = {
    name: LambdaFunction(name=name, stack=stack, **values)
    for stack in STACKS
    for name, values in _read(stack).get("Functions", {}).items()
}
"""The functions that the templates name."""


def stack_name(stage: str, stack: str) -> str:
    """The name of a stack on AWS."""
    return f"longshore-{stage}-{stack}"


def is_enabled(config: StageConfig, stack: str) -> bool:
    """Whether a stage has this stack: workers and the server need an image."""
    return stack not in _CONTAINER_STACKS or getattr(config, stack).image is not None


def stack_parameters(config: StageConfig, stack: str, code_key: str) -> dict[str, str]:
    """The parameters with which a stack is deployed."""
    if stack == INFRASTRUCTURE:
        return {}
    if stack not in _CONTAINER_STACKS:
        return {"CodeKey": code_key}
    container: ContainerConfig = getattr(config, stack)
    return {
        "Image": container.image or "",
        "Subnets": ",".join(container.subnets),
        "SecurityGroups": ",".join(container.security_groups),
    }


def templates(config: StageConfig, *, dispatcher_events: tuple[str, ...]) -> dict[str, Json]:
    """Every template of a stage, by the stack's short name, in the order of ``STACKS``.

    Args:
        dispatcher_events: The types of events that the dispatcher receives.
    """
    return {stack: _template(config, stack, dispatcher_events) for stack in STACKS}


def _template(config: StageConfig, stack: str, dispatcher_events: tuple[str, ...]) -> Json:
    template: Json = {}
    for part in _parts(config, stack, dispatcher_events):
        for section, content in part.items():
            if not isinstance(content, dict):
                template[section] = content
                continue
            target = template.setdefault(section, {})
            if section != "Parameters" and (twice := target.keys() & content.keys()):
                message = f"the template of {stack} has {', '.join(twice)} twice"
                raise ValueError(message)
            target |= content
    _complete_alarms(config, stack, template["Resources"])
    return template


def _parts(config: StageConfig, stack: str, dispatcher_events: tuple[str, ...]) -> Iterator[Json]:
    """The file of a stack and its fragments, filled in."""
    if stack in _CONTAINER_STACKS:
        yield _filled("container", config, **_container_values(config, stack))
        return
    default_bucket = sub(f"longshore-{config.stage}-${{AWS::AccountId}}-${{AWS::Region}}")
    template = _filled(
        stack,
        config,
        bucket_name=config.bucket or default_bucket,
        dispatcher_events=list(dispatcher_events),
        schedule_state="ENABLED" if config.schedules else "DISABLED",
    )
    functions = template.pop("Functions", {})
    yield template
    for function in (FUNCTIONS[name] for name in functions):
        # A function may write only below /tmp.
        settings = {"data_dir": "/tmp/longshore", **function.settings}  # noqa: S108
        yield _filled(
            "function",
            config,
            function=function,
            privileges=statements_of(config, function.name),
            variables=_environment_variables(config, settings),
        )
    if stack == INFRASTRUCTURE and config.alarms.enabled and config.alarms.email:
        addresses = config.alarms.email
        subscriptions = [{"Protocol": "email", "Endpoint": address} for address in addresses]
        yield _filled("alarm-topic", config, subscriptions=subscriptions)
    if fragment := _LANE_FRAGMENTS.get(stack):
        for lane in config.lanes:
            yield _filled(fragment, config, lane=lane, lane_id=logical_id(lane))


def _complete_alarms(config: StageConfig, stack: str, resources: dict[str, Json]) -> None:
    """Add what all alarms have in common, or remove the alarms."""
    alarms = config.alarms
    actions = {}
    if alarms.topic or alarms.email:
        own = {"Ref": "Alarms"} if stack == INFRASTRUCTURE else import_value(config, "alarms")
        actions = {key: [alarms.topic or own] for key in ("AlarmActions", "OKActions")}
    for name, resource in list(resources.items()):
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            if alarms.enabled:
                resource["Properties"] |= _ALARM | actions
            else:
                del resources[name]


def _environment_variables(config: StageConfig, more: Mapping[str, Any]) -> Json:
    """The environment variables of a function or container."""
    settings = {
        **dict(sorted(config.settings.items())),
        **more,
        "backend": "aws",
        "environment": config.stage,
        "aws.bucket": import_value(config, "bucket"),
        "log_format": "json",
    }
    return {
        f"LONGSHORE_{name.replace('.', '_').upper()}": value for name, value in settings.items()
    }


def _container_values(config: StageConfig, stack: str) -> Json:
    """What container.yaml needs for the workers or the server."""
    container: ContainerConfig = getattr(config, stack)
    hosts = ",".join(container.hosts) or None
    service = _filled(stack, config, queue_names=",".join(config.queues), host_names=hosts)
    variables = _environment_variables(
        config, {**service["settings"], "aws.region": {"Ref": "AWS::Region"}}
    )
    secrets = {
        name: arn("ssm", f"parameter/longshore/{config.stage}/{name}") for name in container.secrets
    }
    start_privileges = []
    if secrets:
        start_privileges.append(policy_statement(["ssm:GetParameters"], list(secrets.values())))
    if image := _ECR.match(container.image or ""):
        start_privileges += _filled("image-pull", config, **image.groupdict())["Statement"]
    port = service.get("port")
    balancer = {
        "ContainerName": stack,
        "ContainerPort": port,
        "TargetGroupArn": container.target_group,
    }
    return {
        "name": stack,
        "logical_id": logical_id(stack),
        "description": service["description"],
        "container": container,
        "cpu_architecture": config.functions.architecture.upper(),
        "public_ip": "ENABLED" if container.public_ip else "DISABLED",
        "command": list(container.command) or service["command"],
        "environment": [{"Name": name, "Value": value} for name, value in variables.items()],
        "secrets": [{"Name": name, "ValueFrom": value} for name, value in secrets.items()],
        "port_mappings": [{"ContainerPort": port}] if port else None,
        "load_balancers": [balancer] if port and container.target_group else None,
        "privileges": statements_of(config, stack),
        "start_privileges": start_privileges,
    }
