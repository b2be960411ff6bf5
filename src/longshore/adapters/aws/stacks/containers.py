"""The stacks of workers and of the server, on ECS with Fargate.

The image is yours: Longshore with the modules of your tasks (``deploy/Containerfile`` is a start).
When a task is stopped, Fargate waits at most two minutes; a worker is told to be done before that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.stacks.config import ContainerConfig, StageConfig
from longshore.adapters.aws.stacks.functions import add_log_group, add_role, environment
from longshore.adapters.aws.stacks.parts import Json, Template, arn, att, ref, statement, sub
from longshore.adapters.aws.stacks.privileges import statements_of

STOP_TIMEOUT_S: Final = 120
"""The longest that Fargate waits before it kills."""
DRAIN_GRACE_S: Final = 100
"""What of it a worker's tasks get; the rest is for ending what does not end by itself."""
_PORT = 8421
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.(?:[a-z.]+)/([^:@]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What runs in a container, and what is wanted of it."""

    name: str
    wanted: ContainerConfig
    command: tuple[str, ...]
    settings: dict[str, str]
    port: int | None = None

    def full_name(self, config: StageConfig) -> str:
        """What it is called on AWS."""
        return f"longshore-{config.stage}-{self.name}"


def worker(config: StageConfig) -> Json:
    """The template of workers."""
    own = {"worker.queues": ",".join(config.queues), "worker.drain_grace": f"{DRAIN_GRACE_S}s"}
    kind = _Kind(name="worker", wanted=config.worker, command=("longshore", "worker"), settings=own)
    return _stack(config, kind, "workers")


def server(config: StageConfig) -> Json:
    """The template of the server."""
    own = {"api.host": "0.0.0.0", "api.port": str(_PORT)}  # noqa: S104 - behind its security group
    own["health.enabled"] = "false"  # a function does it
    if config.server.hosts:
        own["api.hosts"] = ",".join(config.server.hosts)
    kind = _Kind(
        name="server",
        wanted=config.server,
        command=("longshore", "up", "--no-worker"),
        settings=own,
        port=_PORT,
    )
    return _stack(config, kind, "the server")


def _stack(config: StageConfig, kind: _Kind, what: str) -> Json:
    template = Template(config.stage, f"Longshore {config.stage}: {what}")
    image = template.parameter("Image", "Image of the container")
    subnets = template.parameter("Subnets", "Where it runs", "List<AWS::EC2::Subnet::Id>")
    groups = template.parameter(
        "SecurityGroups", "What it can reach", "List<AWS::EC2::SecurityGroup::Id>"
    )
    log = add_log_group(template, config, "Log", f"/longshore/{config.stage}/{kind.name}")
    ecs = "ecs-tasks.amazonaws.com"
    add_role(template, "TaskRole", ecs, statements_of(config, kind.name))
    add_role(template, "ExecutionRole", ecs, _starting(config, kind.wanted, log))
    full_name = kind.full_name(config)
    cluster = template.add("Cluster", "AWS::ECS::Cluster", {"ClusterName": full_name})
    definition = _add_definition(template, config, kind, _container(config, kind, image, log))
    _add_service(template, config, kind, cluster, definition, _network(kind, subnets, groups))
    template.export(f"{kind.name}-cluster", ref(cluster), f"Cluster of {full_name}")
    return template.document()


def _container(config: StageConfig, kind: _Kind, image: Json, log: str) -> Json:
    """What runs, with its variables and where its words go."""
    variables = environment(config, {**kind.settings, "aws.region": ref("AWS::Region")})
    container: Json = {
        "Name": kind.name,
        "Image": image,
        "Essential": True,
        "Command": list(kind.wanted.command or kind.command),
        "StopTimeout": STOP_TIMEOUT_S,
        "Environment": [{"Name": name, "Value": value} for name, value in variables.items()],
        "Secrets": [
            {"Name": name, "ValueFrom": _secret(config, name)} for name in kind.wanted.secrets
        ],
        "LogConfiguration": {
            "LogDriver": "awslogs",
            "Options": {
                "awslogs-group": ref(log),
                "awslogs-region": ref("AWS::Region"),
                "awslogs-stream-prefix": kind.name,
            },
        },
        # Collects what tasks leave behind when they end.
        "LinuxParameters": {"InitProcessEnabled": True},
    }
    if kind.port is not None:
        container["PortMappings"] = [{"ContainerPort": kind.port}]
    return container


def _add_definition(template: Template, config: StageConfig, kind: _Kind, container: Json) -> str:
    """How large it is, and whose rights it has."""
    return template.add(
        "Definition",
        "AWS::ECS::TaskDefinition",
        {
            "Family": kind.full_name(config),
            "RequiresCompatibilities": ["FARGATE"],
            "NetworkMode": "awsvpc",
            "Cpu": str(kind.wanted.cpu),
            "Memory": str(kind.wanted.memory_mib),
            "RuntimePlatform": {
                "CpuArchitecture": config.functions.architecture.upper(),
                "OperatingSystemFamily": "LINUX",
            },
            "TaskRoleArn": att("TaskRole"),
            "ExecutionRoleArn": att("ExecutionRole"),
            "ContainerDefinitions": [container],
        },
    )


def _add_service(
    template: Template,
    config: StageConfig,
    kind: _Kind,
    cluster: str,
    definition: str,
    network: Json,
) -> None:
    """How many there are, and how a new version takes the place of the old."""
    template.add(
        "Service",
        "AWS::ECS::Service",
        {
            "ServiceName": kind.full_name(config),
            "Cluster": ref(cluster),
            "TaskDefinition": ref(definition),
            "LaunchType": "FARGATE",
            "DesiredCount": kind.wanted.count,
            "DeploymentConfiguration": {
                "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
                "MinimumHealthyPercent": 100,
                "MaximumPercent": 200,
            },
            **network,
        },
    )


def _network(kind: _Kind, subnets: Json, groups: Json) -> Json:
    """What it can reach, and by what it is reached."""
    inside = {
        "Subnets": subnets,
        "SecurityGroups": groups,
        "AssignPublicIp": "ENABLED" if kind.wanted.public_ip else "DISABLED",
    }
    found: Json = {"NetworkConfiguration": {"AwsvpcConfiguration": inside}}
    if kind.wanted.target_group and kind.port is not None:
        balanced = {"ContainerName": kind.name, "ContainerPort": kind.port}
        found["LoadBalancers"] = [{**balanced, "TargetGroupArn": kind.wanted.target_group}]
    return found


def container_parameters(wanted: ContainerConfig) -> dict[str, str]:
    """What the stack is told when it is deployed."""
    return {
        "Image": wanted.image or "",
        "Subnets": ",".join(wanted.subnets),
        "SecurityGroups": ",".join(wanted.security_groups),
    }


def _starting(config: StageConfig, wanted: ContainerConfig, log: str) -> list[Json]:
    """What ECS needs to start the container, and the container itself has not."""
    found = [
        statement(
            ("logs:CreateLogStream", "logs:PutLogEvents"), [sub("${Group}:*", Group=att(log))]
        )
    ]
    if wanted.secrets:
        names: list[Any] = [_secret(config, variable) for variable in wanted.secrets]
        found.append(statement(("ssm:GetParameters",), names))
    if own := _ECR.match(wanted.image or ""):
        account, region, repository = own.groups()
        pulls = (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        )
        where = f"arn:${{AWS::Partition}}:ecr:{region}:{account}:repository/{repository}"
        found.append(statement(pulls, [sub(where)]))
        # AWS knows no narrower resource for this one.
        found.append(statement(("ecr:GetAuthorizationToken",), ["*"]))
    return found


def _secret(config: StageConfig, variable: str) -> Json:
    return arn("ssm", f"parameter/longshore/{config.stage}/{variable}")
