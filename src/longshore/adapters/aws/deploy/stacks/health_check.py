"""The stack that looks whether what runs is well."""

from __future__ import annotations

from longshore.adapters.aws.deploy.stacks.functions import (
    add_code_parameter,
    add_function,
    add_schedule,
)
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import Json, StackTemplate


def health_check_template(config: StageConfig) -> Json:
    """Its template."""
    template = StackTemplate(
        config.stage, f"Longshore {config.stage}: looks whether what runs is well"
    )
    add_code_parameter(template)
    # One at a time: two would tell people the same.
    every = add_function(template, config, "health-check", concurrency=1)
    add_schedule(template, config, every, "5 minutes", enabled=config.schedules)
    add_function(template, config, "health-check-single")
    return template.document()
