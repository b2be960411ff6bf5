"""The CloudFormation templates of a stage, from the files in ``templates/``.

Each stack has a file; its section ``Functions`` lists its functions. ``function.yaml``,
``queue.yaml`` and ``dead-letter-mapping.yaml`` are repeated for every function or lane, and
``container.yaml`` is the template of the workers and of the server. ``grants.yaml`` is the table of
the permissions of each role, from which the policies and a reference page are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.render import Json, fill, fill_file, read
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


FUNCTIONS: Final = {
    name: LambdaFunction(name=name, stack=stack, **values)
    for stack in STACKS
    for name, values in read(stack).get("Functions", {}).items()
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
                raise ValueError(f"the template of {stack} has {', '.join(twice)} twice")
            target |= content
    _complete_alarms(config, stack, template["Resources"])
    return template


def _parts(config: StageConfig, stack: str, dispatcher_events: tuple[str, ...]) -> Iterator[Json]:
    """The file of a stack and its fragments, filled in."""
    if stack in _CONTAINER_STACKS:
        yield fill_file("container", config, **_container_values(config, stack))
        return
    default_bucket = f"longshore-{config.stage}-${{AWS::AccountId}}-${{AWS::Region}}"
    template = fill_file(
        stack,
        config,
        bucket_name=config.bucket or {"Fn::Sub": default_bucket},
        dispatcher_events=list(dispatcher_events),
        schedule_state="ENABLED" if config.schedules else "DISABLED",
        versioning="Enabled" if config.protected else "Suspended",
    )
    functions = template.pop("Functions", {})
    yield template
    for function in (FUNCTIONS[name] for name in functions):
        # A function may write only below /tmp.
        settings = {"data_dir": "/tmp/longshore", **function.settings}  # noqa: S108
        yield fill_file(
            "function",
            config,
            function=function,
            privileges=statements_of(config, function.name),
            variables=_environment_variables(config, settings),
        )
    if stack == INFRASTRUCTURE and config.alarms.enabled and config.alarms.email:
        addresses = config.alarms.email
        subscriptions = [{"Protocol": "email", "Endpoint": address} for address in addresses]
        yield fill_file("alarm-topic", config, subscriptions=subscriptions)
    if fragment := _LANE_FRAGMENTS.get(stack):
        for lane in config.lanes:
            yield fill_file(fragment, config, lane=lane, lane_id=logical_id(lane))


def _complete_alarms(config: StageConfig, stack: str, resources: dict[str, Json]) -> None:
    """Add what all alarms have in common, or remove the alarms."""
    alarms = config.alarms
    actions = {}
    if alarms.topic or alarms.email:
        exported = {"Fn::ImportValue": f"longshore-{config.stage}-alarms"}
        topic = alarms.topic or ({"Ref": "Alarms"} if stack == INFRASTRUCTURE else exported)
        actions = {"AlarmActions": [topic], "OKActions": [topic]}
    for name, resource in list(resources.items()):
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            if alarms.enabled:
                resource["Properties"] |= _ALARM | actions
            else:
                del resources[name]


def _environment_variables(config: StageConfig, more: Mapping[str, Any]) -> Json:
    """The environment variables of a function or container."""
    common = fill_file("environment", config, queue_names=",".join(config.queues))
    settings = {**dict(sorted(config.settings.items())), **more, **common}
    return {
        f"LONGSHORE_{name.replace('.', '_').upper()}": value for name, value in settings.items()
    }


def _container_values(config: StageConfig, stack: str) -> Json:
    """What container.yaml needs for the workers or the server."""
    container: ContainerConfig = getattr(config, stack)
    hosts = ",".join(container.hosts) or None
    service = fill_file(stack, config, host_names=hosts)
    variables = _environment_variables(
        config, {**service["settings"], "aws.region": {"Ref": "AWS::Region"}}
    )
    secrets = [fill_file("secret", config, secret=name) for name in container.secrets]
    start_privileges = []
    if secrets:
        parameters = [secret["ValueFrom"] for secret in secrets]
        start_privileges.append(policy_statement(["ssm:GetParameters"], parameters))
    if image := _ECR.match(container.image or ""):
        start_privileges += fill_file("image-pull", config, **image.groupdict())["Statement"]
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
        "secrets": secrets,
        "port_mappings": [{"ContainerPort": port}] if port else None,
        "load_balancers": [balancer] if port and container.target_group else None,
        "privileges": statements_of(config, stack),
        "start_privileges": start_privileges,
    }


# Privileges -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """What may be done, and with what."""

    resource: str  # a key of RESOURCES
    actions: Sequence[str]
    reason: str


RESOURCES: Final = read("iam-resources")
"""What can be acted on: its label, its ARNs, and a list of the stage whose items each have ARNs."""


def arns_of(resource: str, config: StageConfig) -> list[Any]:
    """The ARNs of a resource, as CloudFormation has them."""
    entry = RESOURCES[resource]
    items = getattr(config, entry["for_each"]) if "for_each" in entry else [None]
    return [arn for item in items for arn in fill(entry["arns"], config, item=item)]


def _flatten(rows: list[Any]) -> Iterator[tuple[str, list[str], str]]:
    """The rows of a role; a row may be a list of rows that several roles have."""
    for row in rows:
        if isinstance(row[0], str):
            yield row
        else:
            yield from _flatten(row)


def _grants_of(rows: list[Any]) -> tuple[Grant, ...]:
    """The grants of a role, one for each resource."""
    merged: dict[str, tuple[set[str], dict[str, None]]] = {}
    for resource, actions, reason in _flatten(rows):
        all_actions, reasons = merged.setdefault(resource, (set(), {}))
        all_actions.update(actions)
        reasons[reason] = None  # a dict for its order
    return tuple(
        Grant(resource, tuple(sorted(actions)), "; ".join(reasons))
        for resource, (actions, reasons) in merged.items()
    )


GRANTS: Final = {name: _grants_of(rows) for name, rows in read("grants")["roles"].items()}
"""By function or service."""


def statements_of(config: StageConfig, name: str) -> list[Json]:
    """The statements of a role's policy."""
    return [
        policy_statement(grant.actions, arns_of(grant.resource, config)) for grant in GRANTS[name]
    ]


def policy_statement(actions: Iterable[str], resources: list[Any]) -> Json:
    """A policy statement that allows actions."""
    return {
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": resources[0] if len(resources) == 1 else resources,
    }
