"""The stacks of workers and of the server, on ECS with Fargate.

The image is yours: Longshore with the modules of your tasks (``deploy/Containerfile`` is a start).
When a task is stopped, Fargate waits at most two minutes; a worker is told to be done before that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.functions import (
    add_log_group,
    add_role,
    environment_variables,
)
from longshore.adapters.aws.deploy.stacks.privileges import statements_of
from longshore.adapters.aws.deploy.stacks.stage_config import ContainerConfig, StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    Json,
    StackTemplate,
    arn,
    get_att,
    ref,
    statement,
    sub,
)

STOP_TIMEOUT_S: Final = 120
"""The longest that Fargate waits before it kills."""
DRAIN_GRACE_S: Final = 100
"""What of it a worker's tasks get; the rest is for ending what does not end by itself."""
_PORT = 8421
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.(?:[a-z.]+)/([^:@]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _EcsService:
    """What runs in a container, and what is wanted of it."""

    name: str
    container_config: ContainerConfig
    command: tuple[str, ...]
    settings: dict[str, str]
    port: int | None = None

    def full_name(self, config: StageConfig) -> str:
        """What it is called on AWS."""
        return f"longshore-{config.stage}-{self.name}"


def worker_template(config: StageConfig) -> Json:
    """The template of workers."""
    own = {"worker.queues": ",".join(config.queues), "worker.drain_grace": f"{DRAIN_GRACE_S}s"}
    kind = _EcsService(
        name="worker", container_config=config.worker, command=("longshore", "worker"), settings=own
    )
    return _service_template(config, kind, "workers")


def server_template(config: StageConfig) -> Json:
    """The template of the server."""
    own = {"api.host": "0.0.0.0", "api.port": str(_PORT)}  # noqa: S104 - behind its security group
    own["health.enabled"] = "false"  # a function does it
    if config.server.hosts:
        own["api.hosts"] = ",".join(config.server.hosts)
    kind = _EcsService(
        name="server",
        container_config=config.server,
        command=("longshore", "up", "--no-worker"),
        settings=own,
        port=_PORT,
    )
    return _service_template(config, kind, "the server")


def _service_template(config: StageConfig, service: _EcsService, description: str) -> Json:
    template = StackTemplate(config.stage, f"Longshore {config.stage}: {description}")
    image = template.parameter("Image", "Image of the container")
    subnets = template.parameter("Subnets", "Where it runs", "List<AWS::EC2::Subnet::Id>")
    groups = template.parameter(
        "SecurityGroups", "What it can reach", "List<AWS::EC2::SecurityGroup::Id>"
    )
    log = add_log_group(template, config, "Log", f"/longshore/{config.stage}/{service.name}")
    ecs = "ecs-tasks.amazonaws.com"
    add_role(template, "TaskRole", ecs, statements_of(config, service.name))
    add_role(
        template, "ExecutionRole", ecs, _execution_statements(config, service.container_config, log)
    )
    full_name = service.full_name(config)
    cluster = template.add("Cluster", "AWS::ECS::Cluster", {"ClusterName": full_name})
    definition = _add_task_definition(
        template, config, service, _container_definition(config, service, image, log)
    )
    _add_service(
        template,
        config,
        service,
        cluster,
        definition,
        _network_properties(service, subnets, groups),
    )
    template.export(f"{service.name}-cluster", ref(cluster), f"Cluster of {full_name}")
    return template.document()


def _container_definition(config: StageConfig, service: _EcsService, image: Json, log: str) -> Json:
    """What runs, with its variables and where its words go."""
    variables = environment_variables(
        config, {**service.settings, "aws.region": ref("AWS::Region")}
    )
    container: Json = {
        "Name": service.name,
        "Image": image,
        "Essential": True,
        "Command": list(service.container_config.command or service.command),
        "StopTimeout": STOP_TIMEOUT_S,
        "Environment": [{"Name": name, "Value": value} for name, value in variables.items()],
        "Secrets": [
            {"Name": name, "ValueFrom": _secret_arn(config, name)}
            for name in service.container_config.secrets
        ],
        "LogConfiguration": {
            "LogDriver": "awslogs",
            "Options": {
                "awslogs-group": ref(log),
                "awslogs-region": ref("AWS::Region"),
                "awslogs-stream-prefix": service.name,
            },
        },
        # Collects what tasks leave behind when they end.
        "LinuxParameters": {"InitProcessEnabled": True},
    }
    if service.port is not None:
        container["PortMappings"] = [{"ContainerPort": service.port}]
    return container


def _add_task_definition(
    template: StackTemplate, config: StageConfig, service: _EcsService, container: Json
) -> str:
    """How large it is, and whose rights it has."""
    return template.add(
        "TaskDefinition",
        "AWS::ECS::TaskDefinition",
        {
            "Family": service.full_name(config),
            "RequiresCompatibilities": ["FARGATE"],
            "NetworkMode": "awsvpc",
            "Cpu": str(service.container_config.cpu),
            "Memory": str(service.container_config.memory_mib),
            "RuntimePlatform": {
                "CpuArchitecture": config.functions.architecture.upper(),
                "OperatingSystemFamily": "LINUX",
            },
            "TaskRoleArn": get_att("TaskRole"),
            "ExecutionRoleArn": get_att("ExecutionRole"),
            "ContainerDefinitions": [container],
        },
    )


def _add_service(
    template: StackTemplate,
    config: StageConfig,
    service: _EcsService,
    cluster: str,
    definition: str,
    network: Json,
) -> None:
    """How many there are, and how a new version takes the place of the old."""
    template.add(
        "Service",
        "AWS::ECS::Service",
        {
            "ServiceName": service.full_name(config),
            "Cluster": ref(cluster),
            "TaskDefinition": ref(definition),
            "LaunchType": "FARGATE",
            "DesiredCount": service.container_config.count,
            "DeploymentConfiguration": {
                "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
                "MinimumHealthyPercent": 100,
                "MaximumPercent": 200,
            },
            **network,
        },
    )


def _network_properties(service: _EcsService, subnets: Json, groups: Json) -> Json:
    """What it can reach, and by what it is reached."""
    inside = {
        "Subnets": subnets,
        "SecurityGroups": groups,
        "AssignPublicIp": "ENABLED" if service.container_config.public_ip else "DISABLED",
    }
    found: Json = {"NetworkConfiguration": {"AwsvpcConfiguration": inside}}
    if service.container_config.target_group and service.port is not None:
        balanced = {"ContainerName": service.name, "ContainerPort": service.port}
        found["LoadBalancers"] = [
            {**balanced, "TargetGroupArn": service.container_config.target_group}
        ]
    return found


def container_parameters(container_config: ContainerConfig) -> dict[str, str]:
    """What the stack is told when it is deployed."""
    return {
        "Image": container_config.image or "",
        "Subnets": ",".join(container_config.subnets),
        "SecurityGroups": ",".join(container_config.security_groups),
    }


def _execution_statements(
    config: StageConfig, container_config: ContainerConfig, log: str
) -> list[Json]:
    """What ECS needs to start the container, and the container itself has not."""
    found = [
        statement(
            ("logs:CreateLogStream", "logs:PutLogEvents"), [sub("${Group}:*", Group=get_att(log))]
        )
    ]
    if container_config.secrets:
        names: list[Any] = [_secret_arn(config, variable) for variable in container_config.secrets]
        found.append(statement(("ssm:GetParameters",), names))
    if own := _ECR.match(container_config.image or ""):
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


def _secret_arn(config: StageConfig, variable: str) -> Json:
    return arn("ssm", f"parameter/longshore/{config.stage}/{variable}")
