"""The stacks: CloudFormation templates, made from the same names and shapes that the adapters use.

``templates`` writes all of them for a stage. They are deployed in the order of ``STACKS`` and taken
down in the opposite one, because each may import what those before it export.
"""

from __future__ import annotations

from typing import Final

from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.containers import container_parameters, server, worker
from longshore.adapters.aws.stacks.dispatcher import dispatcher
from longshore.adapters.aws.stacks.event import event
from longshore.adapters.aws.stacks.health_check import health_check
from longshore.adapters.aws.stacks.infrastructure import infrastructure
from longshore.adapters.aws.stacks.parts import Json
from longshore.adapters.aws.stacks.producer_api import producer_api

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
_CONTAINERS: Final = ("worker", "server")


def stack_name(stage: str, stack: str) -> str:
    """What CloudFormation knows it as."""
    return f"longshore-{stage}-{stack}"


def templates(config: StageConfig, *, wakes: tuple[str, ...]) -> dict[str, Json]:
    """Every template of a stage, by the stack's short name, in the order of ``STACKS``.

    Args:
        wakes: Types of the events that the dispatcher wants to hear of.
    """
    return {
        INFRASTRUCTURE: infrastructure(config),
        "event": event(config),
        "dispatcher": dispatcher(config, wakes),
        "health-check": health_check(config),
        "producer-api": producer_api(config),
        "worker": worker(config),
        "server": server(config),
    }


def is_wanted(config: StageConfig, stack: str) -> bool:
    """Whether a stage has this stack: workers and servers are there only with an image."""
    return stack not in _CONTAINERS or getattr(config, stack).image is not None


def parameters(config: StageConfig, stack: str, code_key: str) -> dict[str, str]:
    """What a stack is told when it is deployed."""
    if stack == INFRASTRUCTURE:
        return {}
    if stack in _CONTAINERS:
        return container_parameters(getattr(config, stack))
    return {"CodeKey": code_key}
