"""The stack by which events travel: relay, history, and what could not be delivered."""

from __future__ import annotations

from typing import Any

from longshore.adapters.aws.bus import DETAIL_TYPE
from longshore.adapters.aws.stacks.alarms import add_alarm
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.functions import (
    add_code_parameter,
    add_function,
    add_queue_mapping,
)
from longshore.adapters.aws.stacks.infrastructure import UNDELIVERED
from longshore.adapters.aws.stacks.parts import Json, Template, identifier, imported, ref

_RELAY_BATCH = 100
_RELAYS_AT_ONCE = 2  # for each shard of the stream; an item's changes stay in order
_LATE_MS = 10 * 60 * 1000
_DELIVERY_TRIES = 3


def event(config: StageConfig) -> Json:
    """Its template."""
    template = Template(config.stage, f"Longshore {config.stage}: how events travel")
    add_code_parameter(template)
    relay = add_function(template, config, "relay")
    template.add(
        "RelayMapping",
        "AWS::Lambda::EventSourceMapping",
        {
            "EventSourceArn": imported(config.stage, "ledger-stream"),
            "FunctionName": ref(relay.id),
            # What was committed before the relay was there is told too.
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": _RELAY_BATCH,
            "ParallelizationFactor": _RELAYS_AT_ONCE,
            "BisectBatchOnFunctionError": True,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
        },
    )
    add_alarm(
        template,
        config,
        "RelayLate",
        "events are told more than ten minutes after they happened",
        ("AWS/Lambda", "IteratorAge", {"FunctionName": ref(relay.id)}, "Maximum"),
        above=_LATE_MS,
    )
    save = add_function(template, config, "save-event")
    add_rule(template, config, "history")
    history = imported(config.stage, "history-events")
    add_queue_mapping(template, "SaveEventMapping", save, history)
    alert = add_function(template, config, "eventbridge-dlq-alert")
    add_queue_mapping(
        template,
        "UndeliveredMapping",
        alert,
        imported(config.stage, UNDELIVERED),
        # Together as far as may be: people are to get one alert for many events.
        BatchSize=100,
        MaximumBatchingWindowInSeconds=10,
        ScalingConfig={"MaximumConcurrency": 2},
    )
    return template.document()


def add_rule(
    template: Template, config: StageConfig, consumer: str, types: tuple[str, ...] = ()
) -> None:
    """Events go from the bus to a consumer's queue.

    Args:
        types: Those that it wants; none: all.
    """
    pattern: dict[str, Any] = {"source": [{"prefix": "longshore."}], "detail-type": [DETAIL_TYPE]}
    if types:
        pattern["detail"] = {"eventType": list(types)}
    template.add(
        f"{identifier(consumer)}Rule",
        "AWS::Events::Rule",
        {
            "Name": config.names.consumer(consumer),
            "EventBusName": config.names.bus,
            "EventPattern": pattern,
            "Targets": [
                {
                    "Id": "queue",
                    "Arn": imported(config.stage, f"{consumer}-events"),
                    "RetryPolicy": {"MaximumRetryAttempts": _DELIVERY_TRIES},
                    "DeadLetterConfig": {"Arn": imported(config.stage, UNDELIVERED)},
                }
            ],
        },
    )
