"""The permissions of roles as AWS evaluates them, and the permissions that a call needs.

They come from the table from which the templates are rendered, with the names of one stage.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    GRANTS,
    Json,
    arns_of,
    statements_of,
)
from longshore.adapters.aws.names import Names
from tests.aws.stand_in import ACCOUNT, REGION

ActionOnResource = tuple[str, str]  # an action, and what it is done with

EVENT_SOURCE_REASON = "event source of the function"
"""In grants.yaml, why a function may read a queue or a stream that it never reads itself."""

# The same code makes the same calls to each of these queues: a call to one of them is enough.
_INTERCHANGEABLE = ("queues", "dead letters")


@dataclass(frozen=True, order=True)
class Permission:
    """An action that a role may do on one table, index, folder of blobs or other resource."""

    resource: str
    action: str
    index: int | None  # of the resource's ARN in its list; None: any of them


def granted_permissions(role: str) -> set[Permission]:
    """The permissions of a role, without those of Lambda, which the stand-in does not check."""
    return {
        Permission(grant.resource, action, which)
        for grant in GRANTS[role]
        if grant.reason != EVENT_SOURCE_REASON
        for action in grant.actions
        for which in _indexes(grant.resource)
    }


def _indexes(resource: str) -> Iterable[int | None]:
    if resource in _INTERCHANGEABLE:
        return [None]
    return range(len(arns_of(resource, StageConfig(stage="any"))))


@dataclass(frozen=True)
class RolePolicies:
    """The policies of the roles of one stage."""

    names: Names
    config: StageConfig

    @classmethod
    def for_stage(cls, names: Names) -> "RolePolicies":
        """The policies in a stage with the default configuration."""
        return cls(names, StageConfig(stage=names.stage))

    def event_sources(self, role: str) -> set[tuple[str, str]]:
        """The queues and tables that Lambda reads for a function, each with an action."""
        return {
            (re.split(r"[:/]", self._resolve(item).removesuffix("/stream/*"))[-1], action)
            for grant in GRANTS[role]
            if grant.reason == EVENT_SOURCE_REASON
            for item in arns_of(grant.resource, self.config)
            for action in grant.actions
        }

    def policy_document(self, role: str) -> Json:
        """The policy in a role's template, with the values that CloudFormation substitutes."""
        filled: Json = self._resolve(
            {"Version": "2012-10-17", "Statement": statements_of(self.config, role)}
        )
        return filled

    def allows(self, role: str, request: ActionOnResource) -> bool:
        action, resource = request
        return any(
            action == use.action
            and any(self._matches(resource, item) for item in self._resource_patterns(use))
            for use in granted_permissions(role)
        )

    def used_permissions(self, role: str, call_log: Iterable[Mapping[str, Any]]) -> set[Permission]:
        """The permissions that a role has used, by the call log of ``enforcing_server``.

        A call counts if the function's role made it, or the user with the role's policy.
        """
        stage = self.names.stage
        ends = (f"/longshore-{stage}-{role}", f":user/{stage}-{role}")
        calls = {
            (item["action"], item["resource"]) for item in call_log if item["who"].endswith(ends)
        }
        return {
            use
            for use in granted_permissions(role)
            if any(
                action == use.action
                and any(self._matches(resource, item) for item in self._resource_patterns(use))
                for action, resource in calls
            )
        }

    def _resource_patterns(self, permission: Permission) -> list[str]:
        patterns = [self._resolve(item) for item in arns_of(permission.resource, self.config)]
        return patterns if permission.index is None else [patterns[permission.index]]

    @staticmethod
    def _matches(resource: str, pattern: str) -> bool:
        return fnmatchcase(resource, pattern)

    def _resolve(self, value: Any) -> Any:
        match value:
            case {"Fn::ImportValue": str(name)}:
                return self._exports[name.removeprefix(f"longshore-{self.names.stage}-")]
            case {"Fn::Sub": str(text)}:
                return _substitute(text, {})
            case {"Fn::Sub": [str(text), dict(values)]}:
                return _substitute(text, {key: self._resolve(item) for key, item in values.items()})
            case dict():
                return {key: self._resolve(item) for key, item in value.items()}
            case list():
                return [self._resolve(item) for item in value]
        return value

    @property
    def _exports(self) -> Mapping[str, str]:
        names = self.names
        tables = ("ledger", "events", "output", "config")
        return {
            **{f"{item}-table": _table(getattr(names, item)) for item in tables},
            "ledger-stream": f"{_table(names.ledger)}/stream/*",
            "bucket": names.bucket,
            "bus": _arn("events", f"event-bus/{names.bus}"),
        }


def permissions_needed(
    service: str, operation: str, parameters: Mapping[str, Any]
) -> list[ActionOnResource]:
    """The permissions that a call of the client library needs."""
    match service, parameters:
        case "dynamodb", {"TransactItems": parts}:
            kinds = [(kind, part) for item in parts for kind, part in item.items()]
            return [(f"dynamodb:{kind}Item", _table(part["TableName"])) for kind, part in kinds]
        case "dynamodb", {"RequestItems": tables}:
            return [(_action(service, operation), _table(name)) for name in tables]
        case "dynamodb", {"TableName": name, "IndexName": index}:
            return [(_action(service, operation), f"{_table(name)}/index/{index}")]
        case "dynamodb", {"TableName": name}:
            return [(_action(service, operation), _table(name))]
        case "s3", {"Bucket": bucket, "Key": key}:
            return [(_BLOB_ACTIONS[operation], f"arn:aws:s3:::{bucket}/{key}")]
        case "s3", {"Bucket": bucket, "Delete": {"Objects": objects}}:
            arns = [f"arn:aws:s3:::{bucket}/{entry['Key']}" for entry in objects]
            return [("s3:DeleteObject", arn) for arn in arns]
        case "s3", {"Bucket": bucket}:
            return [("s3:ListBucket", f"arn:aws:s3:::{bucket}")]
        case "sqs", {"QueueUrl": url}:
            # SQS checks a batch as the action of each of its entries.
            action = _action(service, operation.removesuffix("_batch"))
            return [(action, _arn("sqs", url.rpartition("/")[2]))]
        case "sqs", {"QueueName": name}:
            return [("sqs:GetQueueUrl", _arn("sqs", name))]
        case "events", {"Entries": entries}:
            buses = {item["EventBusName"] for item in entries}
            return [("events:PutEvents", _arn("events", f"event-bus/{bus}")) for bus in buses]
        case "ssm", {"Path": path}:
            return [(_action(service, operation), _arn("ssm", f"parameter{path}"))]
    return [(_action(service, operation), "*")]


_BLOB_ACTIONS = {
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "delete_object": "s3:DeleteObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "put_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
}


def _action(service: str, operation: str) -> str:
    return f"{service}:{''.join(word.capitalize() for word in operation.split('_'))}"


def _table(name: str) -> str:
    return _arn("dynamodb", f"table/{name}")


def _arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{rest}"


def _substitute(text: str, values: Mapping[str, str]) -> str:
    all_values = {
        "AWS::Partition": "aws",
        "AWS::Region": REGION,
        "AWS::AccountId": ACCOUNT,
        **values,
    }
    return re.sub(r"\$\{([\w:]+)\}", lambda match: all_values[match[1]], text)
