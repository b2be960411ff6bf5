"""Alarms: what must not stay unseen."""

from __future__ import annotations

from typing import Any

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import Json, StackTemplate, import_value

Metric = tuple[str, str, Json, str]
"""Namespace, name, dimensions, and how it is summed up."""

_PERIOD_S = 300


def has_topic(config: StageConfig) -> bool:
    """Whether anybody is told."""
    alarms = config.alarms
    return alarms.enabled and bool(alarms.topic or alarms.email)


def add_alarm(
    template: StackTemplate,
    config: StageConfig,
    name: str,
    description: str,
    metric: Metric,
    *,
    threshold: int,
    topic: Any = None,
) -> None:
    """Tell when a metric is above a number in any five minutes.

    Args:
        topic: Who is told, in the template that has the topic itself.
    """
    if not config.alarms.enabled:
        return
    namespace, measured, dimensions, statistic = metric
    told: list[Any] = [topic or import_value(config.stage, "alarms")] if has_topic(config) else []
    template.add(
        f"{name}Alarm",
        "AWS::CloudWatch::Alarm",
        {
            "AlarmDescription": f"Longshore: {description}",
            "Namespace": namespace,
            "MetricName": measured,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            "Statistic": statistic,
            "Period": _PERIOD_S,
            "EvaluationPeriods": 1,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": threshold,
            # Nothing measured is nothing wrong: a function that is not invoked measures nothing.
            "TreatMissingData": "notBreaching",
            "AlarmActions": told or None,
            "OKActions": told or None,
        },
    )
