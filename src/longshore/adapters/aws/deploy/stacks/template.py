"""The CloudFormation templates of a stage: the files in ``templates/``, filled in.

``<name>`` in a file is a value of the stage file, such as ``<api.burst>``, or a value that this
module computes. Everything else is CloudFormation. Files without a ``Description`` are fragments,
which are repeated for every function or lane.
"""

from __future__ import annotations

import functools
import json
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
SIZE_LIMIT_BYTES: Final = 51_200
"""The longest template that CloudFormation takes in a request."""
CONSUMERS: Final = ("history", "dispatcher")
"""Consumers of events with a queue."""
DRAIN_GRACE_S: Final = 100
"""How long running tasks of a stopped worker get; Fargate kills the container 20 s later."""

_CONTAINER_STACKS: Final = {"worker": "workers", "server": "the server"}
_PORT: Final = 8421
_FOLDER: Final = Path(__file__).with_name("templates")
_PLACEHOLDER: Final = re.compile(r"<([a-z_]+(?:\.[a-z_]+)*)>")
_ECR: Final = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.(?:[a-z.]+)/([^:@]+)")
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


FUNCTIONS: Final = {
    function.name: function
    for function in (
        LambdaFunction(name="relay", stack="event", description="table stream to bus"),
        LambdaFunction(name="save-event", stack="event", description="events to table"),
        LambdaFunction(
            name="eventbridge-dlq-alert",
            stack="event",
            description="stores events that could not be delivered, and alerts",
        ),
        LambdaFunction(
            name="dispatcher", stack="dispatcher", description="dispatches the next tasks"
        ),
        LambdaFunction(
            name="dlq-processor",
            stack="dispatcher",
            description="fails tasks whose messages were received too often",
        ),
        LambdaFunction(
            name="sweeper",
            stack="dispatcher",
            description="repairs what crashes leave behind",
            timeout_s=300,
            concurrency=1,  # two concurrent sweeps would do the same work twice
        ),
        LambdaFunction(
            name="health-check",
            stack="health-check",
            description="checks the health of tasks and queues, and alerts",
            timeout_s=300,
            concurrency=1,  # two concurrent checks would send the same alerts twice
        ),
        LambdaFunction(
            name="health-check-single",
            stack="health-check",
            description="checks one task, when it is invoked by hand",
        ),
        LambdaFunction(
            name="api",
            stack="producer-api",
            description="the API",
            timeout_s=30,  # API Gateway waits no longer
            module="api_gateway",
            settings={"api.hosts": "*"},  # API Gateway checks the host name
        ),
    )
}


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

    def fill(file: str, **values: Any) -> Json:
        scope = SimpleNamespace(**vars(config), **values)
        filled: Json = _fill(_read(file), scope)
        return filled

    lanes = [{"lane": lane, "lane_id": logical_id(lane)} for lane in config.lanes]
    if stack in _CONTAINER_STACKS:
        yield fill("container", **_container_values(config, stack))
        return
    default_bucket = sub(f"longshore-{config.stage}-${{AWS::AccountId}}-${{AWS::Region}}")
    yield fill(
        stack,
        bucket_name=config.bucket or default_bucket,
        dispatcher_events=list(dispatcher_events),
        schedule_state="ENABLED" if config.schedules else "DISABLED",
    )
    if stack == INFRASTRUCTURE:
        if config.alarms.enabled and config.alarms.email:
            addresses = config.alarms.email
            subscriptions = [{"Protocol": "email", "Endpoint": address} for address in addresses]
            yield fill("alarm-topic", subscriptions=subscriptions)
        yield from (fill("queue", **lane) for lane in lanes)
    for function in FUNCTIONS.values():
        if function.stack == stack:
            yield fill(
                "function",
                function=function,
                privileges=statements_of(config, function.name),
                variables=_environment_variables(
                    # The one folder that a function may write.
                    config,
                    {"data_dir": "/tmp/longshore", **function.settings},  # noqa: S108
                ),
            )
    if stack == "dispatcher":
        yield from (fill("dead-letter-mapping", **lane) for lane in lanes)


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
    settings: Json = {"aws.region": {"Ref": "AWS::Region"}}
    ports, balancers = None, None
    if stack == "worker":
        command = ["longshore", "worker"]
        settings |= {
            "worker.queues": ",".join(config.queues),
            "worker.drain_grace": f"{DRAIN_GRACE_S}s",
        }
    else:
        command = ["longshore", "up", "--no-worker"]
        # The security group limits the callers; a function checks the health.
        settings |= {"api.host": "0.0.0.0", "api.port": str(_PORT), "health.enabled": "false"}  # noqa: S104
        if container.hosts:
            settings["api.hosts"] = ",".join(container.hosts)
        ports = [{"ContainerPort": _PORT}]
        if container.target_group:
            target = {"ContainerName": stack, "TargetGroupArn": container.target_group}
            balancers = [{**target, "ContainerPort": _PORT}]
    secrets = {
        name: arn("ssm", f"parameter/longshore/{config.stage}/{name}") for name in container.secrets
    }
    variables = _environment_variables(config, settings)
    return {
        "service": stack,
        "service_id": logical_id(stack),
        "description": _CONTAINER_STACKS[stack],
        "container": container,
        "cpu_architecture": config.functions.architecture.upper(),
        "public_ip": "ENABLED" if container.public_ip else "DISABLED",
        "command": list(container.command) or command,
        "environment": [{"Name": name, "Value": value} for name, value in variables.items()],
        "secrets": [{"Name": name, "ValueFrom": value} for name, value in secrets.items()],
        "port_mappings": ports,
        "load_balancers": balancers,
        "privileges": statements_of(config, stack),
        "start_privileges": list(_start_statements(container, list(secrets.values()))),
    }


def _start_statements(container: ContainerConfig, secrets: list[Json]) -> Iterator[Json]:
    if secrets:
        yield policy_statement(("ssm:GetParameters",), secrets)
    if image := _ECR.match(container.image or ""):
        account, region, repository = image.groups()
        pulls = (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        )
        resource = f"arn:${{AWS::Partition}}:ecr:{region}:{account}:repository/{repository}"
        yield policy_statement(pulls, [sub(resource)])
        # AWS has no narrower resource for this action.
        yield policy_statement(("ecr:GetAuthorizationToken",), ["*"])


def template_text(template: Mapping[str, Any]) -> str:
    """A template as compact, deterministic text."""
    return json.dumps(template, separators=(",", ":"))


# Files ------------------------------------------------------------------------------------------


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
