"""The stack that moves jobs on and mends them."""

from __future__ import annotations

from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.event import add_rule
from longshore.adapters.aws.stacks.functions import (
    add_code_parameter,
    add_function,
    add_queue_mapping,
    add_schedule,
)
from longshore.adapters.aws.stacks.parts import Json, Template, identifier, imported
from longshore.core.states import Priority


def dispatcher(config: StageConfig, wakes: tuple[str, ...]) -> Json:
    """Its template.

    Args:
        wakes: Types of the events after which others may become ready.
    """
    template = Template(config.stage, f"Longshore {config.stage}: moves jobs on, and mends them")
    add_code_parameter(template)
    moving = add_function(template, config, "dispatcher")
    add_rule(template, config, "dispatcher", wakes)
    events = imported(config.stage, "dispatcher-events")
    add_queue_mapping(template, "DispatcherMapping", moving, events)
    burying = add_function(template, config, "dlq-processor")
    for queue in config.queues:
        for priority in Priority:
            lane = f"{queue}-{priority.name.lower()}"
            dead = imported(config.stage, f"dead-{lane}")
            add_queue_mapping(template, f"Dead{identifier(lane)}Mapping", burying, dead)
    # In every stage, whatever its schedules: nothing accepted is lost. Two at once would do the
    # same work twice.
    sweeper = add_function(template, config, "sweeper", concurrency=1)
    add_schedule(template, config, sweeper, "1 minute", enabled=True)
    return template.document()
