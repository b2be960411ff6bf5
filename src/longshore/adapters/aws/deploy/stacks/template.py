"""Building blocks of a template: references, resources, alarms, exports to other stacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig

Json = dict[str, Any]

SIZE_LIMIT_BYTES = 51_200
"""The longest template that CloudFormation takes in a request."""
_ALARM_PERIOD_S = 300

Metric = tuple[str, str, Json, str]
"""Namespace, name, dimensions, statistic."""


def ref(name: str) -> Json:
    """A reference to a parameter or resource."""
    return {"Ref": name}


def get_att(name: str, attribute: str = "Arn") -> Json:
    """An attribute of a resource of the same template."""
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str, **values: Any) -> Json:
    """Text with placeholders for the account, the region and other values."""
    return {"Fn::Sub": [text, values] if values else text}


def arn(service: str, rest: str) -> Json:
    """The ARN of a resource in this account and region."""
    return sub(f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{rest}")


def logical_id(*words: str) -> str:
    """A name inside a template, of letters and digits only."""
    parts = "-".join(words).replace("_", "-").split("-")
    return "".join(f"{part[:1].upper()}{part[1:]}" for part in parts)


class StackTemplate:
    """One stack's template while it is built."""

    def __init__(self, config: StageConfig, description: str) -> None:
        self.config = config
        self._description = f"Longshore {config.stage}: {description}"
        self._parameters: Json = {}
        self._resources: Json = {}
        self._outputs: Json = {}

    def parameter(self, name: str, description: str, kind: str = "String", **more: Any) -> Json:
        """Add a parameter of the deployment. Returns a reference to it."""
        self._parameters[name] = {"Type": kind, "Description": description, **more}
        return ref(name)

    def add(self, name: str, kind: str, properties: Mapping[str, Any], **attributes: Any) -> str:
        """Add a resource, without the properties that are None. Returns its name."""
        if name in self._resources:
            message = f"{name} is in the template already"
            raise ValueError(message)
        present = {key: value for key, value in properties.items() if value is not None}
        self._resources[name] = {"Type": kind, **attributes, "Properties": present}
        return name

    def export(self, name: str, value: Any, description: str) -> None:
        """Add an output that other stacks import and ``longshore aws status`` shows."""
        self._outputs[logical_id(name)] = {
            "Description": description,
            "Value": value,
            "Export": {"Name": f"longshore-{self.config.stage}-{name}"},
        }

    def imported(self, name: str) -> Json:
        """The value that another stack of the stage exports."""
        return import_value(self.config, name)

    def add_alarm(
        self, name: str, description: str, metric: Metric, *, threshold: int, topic: Any = None
    ) -> None:
        """Alarm when a metric is above a threshold in any five minutes, if alarms are enabled.

        Args:
            topic: The topic, in the template that creates it; elsewhere it is imported.
        """
        alarms = self.config.alarms
        if not alarms.enabled:
            return
        namespace, metric_name, dimensions, statistic = metric
        actions = [topic or self.imported("alarms")] if alarms.has_topic else None
        self.add(
            f"{name}Alarm",
            "AWS::CloudWatch::Alarm",
            {
                "AlarmDescription": f"Longshore: {description}",
                "Namespace": namespace,
                "MetricName": metric_name,
                "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
                "Statistic": statistic,
                "Period": _ALARM_PERIOD_S,
                "EvaluationPeriods": 1,
                "ComparisonOperator": "GreaterThanThreshold",
                "Threshold": threshold,
                # A function that is not invoked has no metrics.
                "TreatMissingData": "notBreaching",
                "AlarmActions": actions,
                "OKActions": actions,
            },
        )

    def document(self) -> Json:
        parts = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": self._description,
            "Parameters": self._parameters,
            "Resources": self._resources,
            "Outputs": self._outputs,
        }
        return {name: part for name, part in parts.items() if part}


def import_value(config: StageConfig, name: str) -> Json:
    """The value that a stack of the stage exports."""
    return {"Fn::ImportValue": f"longshore-{config.stage}-{name}"}


def template_text(template: Mapping[str, Any]) -> str:
    """A template as compact, deterministic text."""
    return json.dumps(template, separators=(",", ":"))


def statement(actions: Iterable[str], resources: Iterable[Any], **more: Any) -> Json:
    """A policy statement that allows actions."""
    targets = list(resources)
    return {
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": targets[0] if len(targets) == 1 else targets,
        **more,
    }


def policy(*statements: Json) -> Json:
    return {"Version": "2012-10-17", "Statement": list(statements)}
