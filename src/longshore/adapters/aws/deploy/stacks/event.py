"""The stack by which events travel: relay, history, and what could not be delivered."""

from __future__ import annotations

from typing import Any

from longshore.adapters.aws.deploy.stacks.alarms import add_alarm
from longshore.adapters.aws.deploy.stacks.functions import (
    add_code_parameter,
    add_function,
    add_queue_mapping,
)
from longshore.adapters.aws.deploy.stacks.infrastructure import UNDELIVERED
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    Json,
    StackTemplate,
    import_value,
    logical_id,
    ref,
)
from longshore.adapters.aws.events.event_bus import DETAIL_TYPE

_RELAY_BATCH = 100
_RELAY_PARALLELISM = 2  # for each shard of the stream; an item's changes stay in order
_RELAY_LAG_LIMIT_MS = 10 * 60 * 1000
_DELIVERY_RETRIES = 3


def event_template(config: StageConfig) -> Json:
    """Its template."""
    template = StackTemplate(config.stage, f"Longshore {config.stage}: how events travel")
    add_code_parameter(template)
    relay = add_function(template, config, "relay")
    template.add(
        "RelayMapping",
        "AWS::Lambda::EventSourceMapping",
        {
            "EventSourceArn": import_value(config.stage, "ledger-stream"),
            "FunctionName": ref(relay.logical_id),
            # What was committed before the relay was there is told too.
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": _RELAY_BATCH,
            "ParallelizationFactor": _RELAY_PARALLELISM,
            "BisectBatchOnFunctionError": True,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
        },
    )
    add_alarm(
        template,
        config,
        "RelayLate",
        "events are told more than ten minutes after they happened",
        ("AWS/Lambda", "IteratorAge", {"FunctionName": ref(relay.logical_id)}, "Maximum"),
        threshold=_RELAY_LAG_LIMIT_MS,
    )
    save = add_function(template, config, "save-event")
    add_rule(template, config, "history")
    history = import_value(config.stage, "history-events")
    add_queue_mapping(template, "SaveEventMapping", save, history)
    alert = add_function(template, config, "eventbridge-dlq-alert")
    add_queue_mapping(
        template,
        "UndeliveredMapping",
        alert,
        import_value(config.stage, UNDELIVERED),
        # Together as far as may be: people are to get one alert for many events.
        BatchSize=100,
        MaximumBatchingWindowInSeconds=10,
        ScalingConfig={"MaximumConcurrency": 2},
    )
    return template.document()


def add_rule(
    template: StackTemplate, config: StageConfig, consumer: str, types: tuple[str, ...] = ()
) -> None:
    """Events go from the bus to a consumer's queue.

    Args:
        types: Those that it wants; none: all.
    """
    pattern: dict[str, Any] = {"source": [{"prefix": "longshore."}], "detail-type": [DETAIL_TYPE]}
    if types:
        pattern["detail"] = {"eventType": list(types)}
    template.add(
        f"{logical_id(consumer)}Rule",
        "AWS::Events::Rule",
        {
            "Name": config.names.consumer(consumer),
            "EventBusName": config.names.bus,
            "EventPattern": pattern,
            "Targets": [
                {
                    "Id": "queue",
                    "Arn": import_value(config.stage, f"{consumer}-events"),
                    "RetryPolicy": {"MaximumRetryAttempts": _DELIVERY_RETRIES},
                    "DeadLetterConfig": {"Arn": import_value(config.stage, UNDELIVERED)},
                }
            ],
        },
    )
