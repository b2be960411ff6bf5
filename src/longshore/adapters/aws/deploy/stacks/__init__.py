"""The stacks: CloudFormation templates, made from the same names and shapes that the adapters use.

``templates`` writes all of them for a stage. They are deployed in the order of ``STACKS`` and taken
down in the opposite one, because each may import what those before it export.
"""

from __future__ import annotations

from typing import Final

from longshore.adapters.aws.deploy.stacks.containers import (
    container_parameters,
    server_template,
    worker_template,
)
from longshore.adapters.aws.deploy.stacks.dispatcher import dispatcher_template
from longshore.adapters.aws.deploy.stacks.event import event_template
from longshore.adapters.aws.deploy.stacks.health_check import health_check_template
from longshore.adapters.aws.deploy.stacks.infrastructure import infrastructure_template
from longshore.adapters.aws.deploy.stacks.producer_api import producer_api_template
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import Json

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
"""By their short names, in the order in which they are deployed."""
_CONTAINER_STACKS: Final = ("worker", "server")


def stack_name(stage: str, stack: str) -> str:
    """What CloudFormation knows it as."""
    return f"longshore-{stage}-{stack}"


def templates(config: StageConfig, *, dispatcher_events: tuple[str, ...]) -> dict[str, Json]:
    """Every template of a stage, by the stack's short name, in the order of ``STACKS``.

    Args:
        wakes: Types of the events that the dispatcher wants to hear of.
    """
    return {
        INFRASTRUCTURE: infrastructure_template(config),
        "event": event_template(config),
        "dispatcher": dispatcher_template(config, dispatcher_events),
        "health-check": health_check_template(config),
        "producer-api": producer_api_template(config),
        "worker": worker_template(config),
        "server": server_template(config),
    }


def is_enabled(config: StageConfig, stack: str) -> bool:
    """Whether a stage has this stack: workers and servers are there only with an image."""
    return stack not in _CONTAINER_STACKS or getattr(config, stack).image is not None


def stack_parameters(config: StageConfig, stack: str, code_key: str) -> dict[str, str]:
    """What a stack is told when it is deployed."""
    if stack == INFRASTRUCTURE:
        return {}
    if stack in _CONTAINER_STACKS:
        return container_parameters(getattr(config, stack))
    return {"CodeKey": code_key}
