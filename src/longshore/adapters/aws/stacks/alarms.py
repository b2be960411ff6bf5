"""Alarms: what must not stay unseen."""

from __future__ import annotations

from typing import Any

from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.parts import Json, Template, imported

Metric = tuple[str, str, Json, str]
"""Namespace, name, dimensions, and how it is summed up."""

_PERIOD_S = 300


def has_topic(config: StageConfig) -> bool:
    """Whether anybody is told."""
    alarms = config.alarms
    return alarms.enabled and bool(alarms.topic or alarms.email)


def add_alarm(
    template: Template,
    config: StageConfig,
    name: str,
    meaning: str,
    metric: Metric,
    *,
    above: int,
    topic: Any = None,
) -> None:
    """Tell when a metric is above a number in any five minutes.

    Args:
        topic: Who is told, in the template that has the topic itself.
    """
    if not config.alarms.enabled:
        return
    namespace, measured, dimensions, statistic = metric
    told: list[Any] = [topic or imported(config.stage, "alarms")] if has_topic(config) else []
    template.add(
        f"{name}Alarm",
        "AWS::CloudWatch::Alarm",
        {
            "AlarmDescription": f"Longshore: {meaning}",
            "Namespace": namespace,
            "MetricName": measured,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            "Statistic": statistic,
            "Period": _PERIOD_S,
            "EvaluationPeriods": 1,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": above,
            # Nothing measured is nothing wrong: a function that is not invoked measures nothing.
            "TreatMissingData": "notBreaching",
            "AlarmActions": told or None,
            "OKActions": told or None,
        },
    )
