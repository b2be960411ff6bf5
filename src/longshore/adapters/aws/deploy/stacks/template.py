"""What every template is made of: references, resources, outputs that other stacks import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

SIZE_LIMIT_BYTES = 51_200
"""The longest template that CloudFormation takes in a request."""


def ref(name: str) -> Json:
    """The parameter or the resource of that name."""
    return {"Ref": name}


def get_att(name: str, attribute: str = "Arn") -> Json:
    """An attribute of a resource of the same template."""
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str, **values: Any) -> Json:
    """Text with the account, the region and other values put in."""
    return {"Fn::Sub": [text, values] if values else text}


def arn(service: str, rest: str) -> Json:
    """The name of something in this account and region."""
    return sub(f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{rest}")


def logical_id(*words: str) -> str:
    """A name inside a template, which may have letters and digits only."""
    parts = "-".join(words).replace("_", "-").split("-")
    return "".join(f"{part[:1].upper()}{part[1:]}" for part in parts)


class StackTemplate:
    """One stack's template while it is written."""

    def __init__(self, stage: str, description: str) -> None:
        self._stage = stage
        self._description = description
        self._parameters: Json = {}
        self._resources: Json = {}
        self._outputs: Json = {}

    def parameter(self, name: str, description: str, kind: str = "String", **more: Any) -> Json:
        """What is told when the stack is deployed; a reference to it."""
        self._parameters[name] = {"Type": kind, "Description": description, **more}
        return ref(name)

    def add(self, name: str, kind: str, properties: Mapping[str, Any], **attributes: Any) -> str:
        """A resource; its name, for references."""
        if name in self._resources:
            message = f"{name} is in the template already"
            raise ValueError(message)
        given = {key: value for key, value in properties.items() if value is not None}
        self._resources[name] = {"Type": kind, **attributes, "Properties": given}
        return name

    def export(self, name: str, value: Any, description: str) -> None:
        """Something that other stacks import and ``status`` shows."""
        self._outputs[logical_id(name)] = {
            "Description": description,
            "Value": value,
            "Export": {"Name": export_name(self._stage, name)},
        }

    def document(self) -> Json:
        """The template, ready to be sent."""
        parts = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": self._description,
            "Parameters": self._parameters,
            "Resources": self._resources,
            "Outputs": self._outputs,
        }
        return {name: part for name, part in parts.items() if part}


def export_name(stage: str, name: str) -> str:
    """Under which a value is known to all stacks of the account."""
    return f"longshore-{stage}-{name}"


def import_value(stage: str, name: str) -> Json:
    """What another stack has exported."""
    return {"Fn::ImportValue": export_name(stage, name)}


def template_text(template: Mapping[str, Any]) -> str:
    """A template as it is sent: the same template, the same text."""
    return json.dumps(template, separators=(",", ":"))


def statement(actions: Iterable[str], resources: Iterable[Any], **more: Any) -> Json:
    """A sentence of a policy that allows something."""
    found = list(resources)
    return {
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": found[0] if len(found) == 1 else found,
        **more,
    }


def policy(*statements: Json) -> Json:
    """A policy of such sentences."""
    return {"Version": "2012-10-17", "Statement": list(statements)}
