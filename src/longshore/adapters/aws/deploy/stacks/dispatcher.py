"""The stack that moves jobs on and mends them."""

from __future__ import annotations

from longshore.adapters.aws.deploy.stacks.event import add_rule
from longshore.adapters.aws.deploy.stacks.functions import (
    add_code_parameter,
    add_function,
    add_queue_mapping,
    add_schedule,
)
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    Json,
    StackTemplate,
    import_value,
    logical_id,
)
from longshore.core.tasks.states import Priority


def dispatcher_template(config: StageConfig, event_types: tuple[str, ...]) -> Json:
    """Its template.

    Args:
        wakes: Types of the events after which others may become ready.
    """
    template = StackTemplate(
        config.stage, f"Longshore {config.stage}: moves jobs on, and mends them"
    )
    add_code_parameter(template)
    moving = add_function(template, config, "dispatcher")
    add_rule(template, config, "dispatcher", event_types)
    events = import_value(config.stage, "dispatcher-events")
    add_queue_mapping(template, "DispatcherMapping", moving, events)
    burying = add_function(template, config, "dlq-processor")
    for queue in config.queues:
        for priority in Priority:
            lane = f"{queue}-{priority.name.lower()}"
            dead = import_value(config.stage, f"dead-{lane}")
            add_queue_mapping(template, f"Dead{logical_id(lane)}Mapping", burying, dead)
    # In every stage, whatever its schedules: nothing accepted is lost. Two at once would do the
    # same work twice.
    sweeper = add_function(template, config, "sweeper", concurrency=1)
    add_schedule(template, config, sweeper, "1 minute", enabled=True)
    return template.document()
