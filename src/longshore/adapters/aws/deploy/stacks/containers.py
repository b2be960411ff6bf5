"""The stacks of the workers and of the server, on ECS with Fargate.

The image is yours: Longshore with the modules of your tasks (start from ``deploy/Containerfile``).
Fargate kills a container two minutes after it is stopped; a worker drains in less time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.functions import (
    add_log_group,
    add_role,
    environment_variables,
    log_statement,
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
"""The longest time between stop and kill on Fargate."""
DRAIN_GRACE_S: Final = 100
"""How much of it running tasks get; the rest is for killing them."""
_PORT = 8421
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.(?:[a-z.]+)/([^:@]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _EcsService:
    name: str
    container: ContainerConfig
    command: tuple[str, ...]
    settings: dict[str, str]
    port: int | None = None


def worker_template(config: StageConfig) -> Json:
    settings = {"worker.queues": ",".join(config.queues), "worker.drain_grace": f"{DRAIN_GRACE_S}s"}
    service = _EcsService(
        name="worker", container=config.worker, command=("longshore", "worker"), settings=settings
    )
    return _service_template(config, service, "workers")


def server_template(config: StageConfig) -> Json:
    settings = {"api.host": "0.0.0.0", "api.port": str(_PORT)}  # noqa: S104 - in a security group
    settings["health.enabled"] = "false"  # a function checks the health
    if config.server.hosts:
        settings["api.hosts"] = ",".join(config.server.hosts)
    service = _EcsService(
        name="server",
        container=config.server,
        command=("longshore", "up", "--no-worker"),
        settings=settings,
        port=_PORT,
    )
    return _service_template(config, service, "the server")


def _service_template(config: StageConfig, service: _EcsService, description: str) -> Json:
    template, container = StackTemplate(config, description), service.container
    full_name = f"longshore-{config.stage}-{service.name}"
    image = template.parameter("Image", "Image of the container")
    subnets = template.parameter("Subnets", "Where it runs", "List<AWS::EC2::Subnet::Id>")
    groups = template.parameter(
        "SecurityGroups", "What it can reach", "List<AWS::EC2::SecurityGroup::Id>"
    )
    log = add_log_group(template, "Log", f"/longshore/{config.stage}/{service.name}")
    ecs = "ecs-tasks.amazonaws.com"
    add_role(template, "TaskRole", ecs, statements_of(config, service.name))
    add_role(template, "ExecutionRole", ecs, _execution_statements(config, container, log))
    cluster = template.add("Cluster", "AWS::ECS::Cluster", {"ClusterName": full_name})
    definition = template.add(
        "TaskDefinition",
        "AWS::ECS::TaskDefinition",
        {
            "Family": full_name,
            "RequiresCompatibilities": ["FARGATE"],
            "NetworkMode": "awsvpc",
            "Cpu": str(container.cpu),
            "Memory": str(container.memory_mib),
            "RuntimePlatform": {
                "CpuArchitecture": config.functions.architecture.upper(),
                "OperatingSystemFamily": "LINUX",
            },
            "TaskRoleArn": get_att("TaskRole"),
            "ExecutionRoleArn": get_att("ExecutionRole"),
            "ContainerDefinitions": [_container_definition(config, service, image, log)],
        },
    )
    balancer = {
        "ContainerName": service.name,
        "ContainerPort": service.port,
        "TargetGroupArn": container.target_group,
    }
    template.add(
        "Service",
        "AWS::ECS::Service",
        {
            "ServiceName": full_name,
            "Cluster": ref(cluster),
            "TaskDefinition": ref(definition),
            "LaunchType": "FARGATE",
            "DesiredCount": container.count,
            "DeploymentConfiguration": {
                "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
                "MinimumHealthyPercent": 100,
                "MaximumPercent": 200,
            },
            "NetworkConfiguration": {
                "AwsvpcConfiguration": {
                    "Subnets": subnets,
                    "SecurityGroups": groups,
                    "AssignPublicIp": "ENABLED" if container.public_ip else "DISABLED",
                }
            },
            "LoadBalancers": [balancer] if service.port and container.target_group else None,
        },
    )
    template.export(f"{service.name}-cluster", ref(cluster), f"Cluster of {full_name}")
    return template.document()


def _container_definition(config: StageConfig, service: _EcsService, image: Json, log: str) -> Json:
    variables = environment_variables(
        config, {**service.settings, "aws.region": ref("AWS::Region")}
    )
    definition: Json = {
        "Name": service.name,
        "Image": image,
        "Essential": True,
        "Command": list(service.container.command or service.command),
        "StopTimeout": STOP_TIMEOUT_S,
        "Environment": [{"Name": name, "Value": value} for name, value in variables.items()],
        "Secrets": [
            {"Name": name, "ValueFrom": _secret_arn(config, name)}
            for name in service.container.secrets
        ],
        "LogConfiguration": {
            "LogDriver": "awslogs",
            "Options": {
                "awslogs-group": ref(log),
                "awslogs-region": ref("AWS::Region"),
                "awslogs-stream-prefix": service.name,
            },
        },
        # Reaps the processes that tasks leave behind.
        "LinuxParameters": {"InitProcessEnabled": True},
    }
    if service.port is not None:
        definition["PortMappings"] = [{"ContainerPort": service.port}]
    return definition


def container_parameters(container_config: ContainerConfig) -> dict[str, str]:
    """The parameters of the stack."""
    return {
        "Image": container_config.image or "",
        "Subnets": ",".join(container_config.subnets),
        "SecurityGroups": ",".join(container_config.security_groups),
    }


def _execution_statements(
    config: StageConfig, container_config: ContainerConfig, log: str
) -> list[Json]:
    """What ECS needs to start the container; the container itself does not have it."""
    statements = [log_statement(log)]
    if container_config.secrets:
        names: list[Any] = [_secret_arn(config, variable) for variable in container_config.secrets]
        statements.append(statement(("ssm:GetParameters",), names))
    if image := _ECR.match(container_config.image or ""):
        account, region, repository = image.groups()
        pulls = (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        )
        resource = f"arn:${{AWS::Partition}}:ecr:{region}:{account}:repository/{repository}"
        statements.append(statement(pulls, [sub(resource)]))
        # AWS has no narrower resource for this action.
        statements.append(statement(("ecr:GetAuthorizationToken",), ["*"]))
    return statements


def _secret_arn(config: StageConfig, variable: str) -> Json:
    return arn("ssm", f"parameter/longshore/{config.stage}/{variable}")
