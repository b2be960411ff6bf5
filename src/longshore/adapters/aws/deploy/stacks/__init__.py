"""The stacks: CloudFormation templates, made from the names and schemas that the adapters use.

They are deployed in the order of ``STACKS`` and deleted in the opposite order, because a stack may
import what earlier ones export.
"""

from __future__ import annotations

from typing import Final

from longshore.adapters.aws.deploy.stacks.containers import (
    container_parameters,
    server_template,
    worker_template,
)
from longshore.adapters.aws.deploy.stacks.functions import (
    dispatcher_template,
    event_template,
    health_check_template,
    producer_api_template,
)
from longshore.adapters.aws.deploy.stacks.infrastructure import infrastructure_template
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
"""The short names of the stacks, in the order of deployment."""
_CONTAINER_STACKS: Final = ("worker", "server")


def stack_name(stage: str, stack: str) -> str:
    """The name of a stack on AWS."""
    return f"longshore-{stage}-{stack}"


def templates(config: StageConfig, *, dispatcher_events: tuple[str, ...]) -> dict[str, Json]:
    """Every template of a stage, by the stack's short name, in the order of ``STACKS``.

    Args:
        dispatcher_events: The types of events that the dispatcher receives.
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
    """Whether a stage has this stack: workers and the server need an image."""
    return stack not in _CONTAINER_STACKS or getattr(config, stack).image is not None


def stack_parameters(config: StageConfig, stack: str, code_key: str) -> dict[str, str]:
    """The parameters with which a stack is deployed."""
    if stack == INFRASTRUCTURE:
        return {}
    if stack in _CONTAINER_STACKS:
        return container_parameters(getattr(config, stack))
    return {"CodeKey": code_key}
