"""What roles may do, as AWS takes it: actions, and patterns of names; and what a call asks for.

Of the same table of which the templates are made, with the names of one stage put in.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from longshore.adapters.aws.names import Names
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.parts import Json, policy
from longshore.adapters.aws.stacks.privileges import FEEDS, GRANTS, PLACES, statements_of
from tests.aws.standin import ACCOUNT, REGION

Call = tuple[str, str]  # an action, and what it is done with

# The same code asks for the same of each of their queues: of a family, one is as good as another.
_FAMILIES = ("queues", "dead letters")


@dataclass(frozen=True, order=True)
class Use:
    """One thing that a role may do: each table, index and folder of blobs counts for itself."""

    place: str
    action: str
    which: int | None  # of the names of the place; None: any of a family


def granted(role: str) -> set[Use]:
    """All that a role may do, but for what Lambda does for it: the stand-in's asks nobody."""
    return {
        Use(grant.place, action, which)
        for grant in GRANTS[role]
        if grant.why != FEEDS
        for action in grant.actions
        for which in _numbers(grant.place)
    }


def _numbers(place: str) -> Iterable[int | None]:
    if place in _FAMILIES:
        return [None]
    return range(len(PLACES[place].arns(StageConfig(stage="any"))))


@dataclass(frozen=True)
class Rights:
    """Of the roles of one stage."""

    names: Names
    config: StageConfig

    @classmethod
    def of(cls, names: Names) -> "Rights":
        """In a stage of which nothing else is said."""
        return cls(names, StageConfig(stage=names.stage))

    def fed_by(self, role: str) -> set[tuple[str, str]]:
        """What a function is handed by Lambda: of which queue or table, and by which action."""
        return {
            (re.split(r"[:/]", self._filled(one).removesuffix("/stream/*"))[-1], action)
            for grant in GRANTS[role]
            if grant.why == FEEDS
            for one in PLACES[grant.place].arns(self.config)
            for action in grant.actions
        }

    def policy_of(self, role: str) -> Json:
        """What a role's template says, with everything put in that CloudFormation puts in."""
        filled: Json = self._filled(policy(*statements_of(self.config, role)))
        return filled

    def allows(self, role: str, call: Call) -> bool:
        action, resource = call
        return any(
            action == use.action and any(self._fits(resource, one) for one in self._at(use))
            for use in granted(role)
        )

    def used(self, role: str, notes: Iterable[Mapping[str, Any]]) -> set[Use]:
        """What of its rights a role has used, by what the stand-in noted: see ``watched``.

        By a function's role, or by the user who has its rights.
        """
        stage = self.names.stage
        ends = (f"/longshore-{stage}-{role}", f":user/{stage}-{role}")
        made = {(one["action"], one["resource"]) for one in notes if one["who"].endswith(ends)}
        return {
            use
            for use in granted(role)
            if any(
                action == use.action and any(self._fits(resource, one) for one in self._at(use))
                for action, resource in made
            )
        }

    def _at(self, use: Use) -> list[str]:
        patterns = [self._filled(one) for one in PLACES[use.place].arns(self.config)]
        return patterns if use.which is None else [patterns[use.which]]

    @staticmethod
    def _fits(resource: str, pattern: str) -> bool:
        return fnmatchcase(resource, pattern)

    def _filled(self, value: Any) -> Any:
        match value:
            case {"Fn::ImportValue": str(name)}:
                return self._exported[name.removeprefix(f"longshore-{self.names.stage}-")]
            case {"Fn::Sub": str(text)}:
                return _put_in(text, {})
            case {"Fn::Sub": [str(text), dict(values)]}:
                return _put_in(text, {key: self._filled(one) for key, one in values.items()})
            case dict():
                return {key: self._filled(one) for key, one in value.items()}
            case list():
                return [self._filled(one) for one in value]
        return value

    @property
    def _exported(self) -> Mapping[str, str]:
        names = self.names
        tables = ("ledger", "events", "output", "house")
        return {
            **{f"{one}-table": _table(getattr(names, one)) for one in tables},
            "ledger-stream": f"{_table(names.ledger)}/stream/*",
            "bucket": names.bucket,
            "bus": _arn("events", f"event-bus/{names.bus}"),
        }


def asked_by(service: str, operation: str, parameters: Mapping[str, Any]) -> list[Call]:
    """What a call of the client library asks a policy for."""
    match service, parameters:
        case "dynamodb", {"TransactItems": parts}:
            kinds = [(kind, part) for one in parts for kind, part in one.items()]
            return [(f"dynamodb:{kind}Item", _table(part["TableName"])) for kind, part in kinds]
        case "dynamodb", {"RequestItems": tables}:
            return [(_action(service, operation), _table(name)) for name in tables]
        case "dynamodb", {"TableName": name, "IndexName": index}:
            return [(_action(service, operation), f"{_table(name)}/index/{index}")]
        case "dynamodb", {"TableName": name}:
            return [(_action(service, operation), _table(name))]
        case "s3", {"Bucket": bucket, "Key": key}:
            return [(_OF_BLOBS[operation], f"arn:aws:s3:::{bucket}/{key}")]
        case "s3", {"Bucket": bucket}:
            return [("s3:ListBucket", f"arn:aws:s3:::{bucket}")]
        case "sqs", {"QueueUrl": url}:
            # To SQS, a batch is the action of each of its entries.
            action = _action(service, operation.removesuffix("_batch"))
            return [(action, _arn("sqs", url.rpartition("/")[2]))]
        case "sqs", {"QueueName": name}:
            return [("sqs:GetQueueUrl", _arn("sqs", name))]
        case "events", {"Entries": entries}:
            buses = {one["EventBusName"] for one in entries}
            return [("events:PutEvents", _arn("events", f"event-bus/{bus}")) for bus in buses]
        case "ssm", {"Path": path}:
            return [(_action(service, operation), _arn("ssm", f"parameter{path}"))]
    return [(_action(service, operation), "*")]


_OF_BLOBS = {
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


def _put_in(text: str, values: Mapping[str, str]) -> str:
    known = {"AWS::Partition": "aws", "AWS::Region": REGION, "AWS::AccountId": ACCOUNT, **values}
    return re.sub(r"\$\{([\w:]+)\}", lambda found: known[found[1]], text)
