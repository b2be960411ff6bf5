"""The stacks of workers and of the server, on ECS with Fargate.

The image is yours: Longshore with the modules of your tasks (``deploy/Containerfile`` is a start).
When a task is stopped, Fargate waits at most two minutes; a worker is told to be done before that.
"""

from __future__ import annotations

import re
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


def worker(config: StageConfig) -> Json:
    """The template of workers."""
    template = Template(config.stage, f"Longshore {config.stage}: workers")
    own = {"worker.queues": ",".join(config.queues), "worker.drain_grace": f"{DRAIN_GRACE_S}s"}
    _service(template, config, "worker", config.worker, ("longshore", "worker"), own)
    return template.document()


def server(config: StageConfig) -> Json:
    """The template of the server."""
    template = Template(config.stage, f"Longshore {config.stage}: the server")
    own = {"api.host": "0.0.0.0", "api.port": str(_PORT)}  # noqa: S104 - behind its security group
    own["health.enabled"] = "false"  # a function does it
    if config.server.hosts:
        own["api.hosts"] = ",".join(config.server.hosts)
    command = ("longshore", "up", "--no-worker")
    _service(template, config, "server", config.server, command, own, port=_PORT)
    return template.document()


def _service(
    template: Template,
    config: StageConfig,
    name: str,
    wanted: ContainerConfig,
    command: tuple[str, ...],
    settings: dict[str, str],
    port: int | None = None,
) -> None:
    full_name = f"longshore-{config.stage}-{name}"
    image = template.parameter("Image", "Image of the container")
    subnets = template.parameter("Subnets", "Where it runs", "List<AWS::EC2::Subnet::Id>")
    groups = template.parameter(
        "SecurityGroups", "What it can reach", "List<AWS::EC2::SecurityGroup::Id>"
    )
    log = add_log_group(template, config, "Log", f"/longshore/{config.stage}/{name}")
    add_role(template, "TaskRole", "ecs-tasks.amazonaws.com", statements_of(config, name))
    add_role(template, "ExecutionRole", "ecs-tasks.amazonaws.com", _starting(config, wanted, log))
    cluster = template.add("Cluster", "AWS::ECS::Cluster", {"ClusterName": full_name})
    container = {
        "Name": name,
        "Image": image,
        "Essential": True,
        "Command": list(wanted.command or command),
        "StopTimeout": STOP_TIMEOUT_S,
        "Environment": [
            {"Name": variable, "Value": value}
            for variable, value in environment(
                config, {**settings, "aws.region": ref("AWS::Region")}
            ).items()
        ],
        "Secrets": [
            {"Name": variable, "ValueFrom": _secret(config, variable)}
            for variable in wanted.secrets
        ],
        "LogConfiguration": {
            "LogDriver": "awslogs",
            "Options": {
                "awslogs-group": ref(log),
                "awslogs-region": ref("AWS::Region"),
                "awslogs-stream-prefix": name,
            },
        },
        # Collects what tasks leave behind when they end.
        "LinuxParameters": {"InitProcessEnabled": True},
    }
    if port is not None:
        container["PortMappings"] = [{"ContainerPort": port}]
    definition = template.add(
        "Definition",
        "AWS::ECS::TaskDefinition",
        {
            "Family": full_name,
            "RequiresCompatibilities": ["FARGATE"],
            "NetworkMode": "awsvpc",
            "Cpu": str(wanted.cpu),
            "Memory": str(wanted.memory_mib),
            "RuntimePlatform": {
                "CpuArchitecture": config.functions.architecture.upper(),
                "OperatingSystemFamily": "LINUX",
            },
            "TaskRoleArn": att("TaskRole"),
            "ExecutionRoleArn": att("ExecutionRole"),
            "ContainerDefinitions": [container],
        },
    )
    template.add(
        "Service",
        "AWS::ECS::Service",
        {
            "ServiceName": full_name,
            "Cluster": ref(cluster),
            "TaskDefinition": ref(definition),
            "LaunchType": "FARGATE",
            "DesiredCount": wanted.count,
            "DeploymentConfiguration": {
                "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
                "MinimumHealthyPercent": 100,
                "MaximumPercent": 200,
            },
            "NetworkConfiguration": {
                "AwsvpcConfiguration": {
                    "Subnets": subnets,
                    "SecurityGroups": groups,
                    "AssignPublicIp": "ENABLED" if wanted.public_ip else "DISABLED",
                }
            },
            "LoadBalancers": [
                {
                    "ContainerName": name,
                    "ContainerPort": port,
                    "TargetGroupArn": wanted.target_group,
                }
            ]
            if wanted.target_group and port is not None
            else None,
        },
    )
    template.export(f"{name}-cluster", ref(cluster), f"Cluster of {full_name}")


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
