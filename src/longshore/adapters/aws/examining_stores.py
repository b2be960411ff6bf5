"""Tables and the bucket, held against what the stacks make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from longshore.adapters.aws.examining_calls import DENIED, Asking, Reply
from longshore.adapters.aws.names import Names
from longshore.ports.inspection import Check, Mark

Json = dict[str, Any]

_NO_TABLE = "ResourceNotFoundException"
_BLOCKS = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
_ANEW = "keys cannot be changed: use another stage, or move this table out of the way; then "


async def tables(asking: Asking, expected: list[Json], deploy: str) -> list[Check]:
    """A check for each table, as its resource in the template says."""
    found = await asyncio.gather(*(_table(asking, shape, deploy) for shape in expected))
    return [check for checks in found for check in checks]


async def _table(asking: Asking, shape: Json, deploy: str) -> list[Check]:
    table = shape["TableName"]
    name = f"table {table}"
    reply, expiry = await asyncio.gather(
        asking.ask("dynamodb", "describe_table", TableName=table),
        asking.ask("dynamodb", "describe_time_to_live", TableName=table),
    )
    if reply.code == _NO_TABLE:
        return [Check(name, Mark.FAIL, "it is not there", "a table", deploy)]
    if reply.answer is None:
        return [reply.unexpected(name)]
    there = reply.answer["Table"]
    problems = [
        *_of_keys(name, shape, there, deploy),
        *_of_indexes(name, shape, there, deploy),
        *_of_stream(name, shape, there, deploy),
        *_of_expiry(name, shape, expiry, deploy),
    ]
    if (status := there.get("TableStatus")) != "ACTIVE":
        problems.append(Check(name, Mark.WARN, f"it is {status}", "ACTIVE", "wait a little"))
    if _is_limited(there):
        detail = "its capacity is limited, and what is above is throttled"
        problems.append(Check(name, Mark.WARN, detail, "pay per request", deploy))
    if problems:
        return problems
    count = len(shape.get("GlobalSecondaryIndexes", ()))
    parts = [f"{count} indexes"] if count else []
    parts += ["a stream"] if "StreamSpecification" in shape else []
    parts += ["expiry"] if "TimeToLiveSpecification" in shape else []
    return [Check(name, Mark.OK, f"as deployed: {', '.join(['keys', *parts])}")]


def _is_limited(there: Json) -> bool:
    if there.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        return False
    return bool(there.get("ProvisionedThroughput", {}).get("WriteCapacityUnits"))


def _keys(schema: list[Json]) -> str:
    order = sorted(schema, key=lambda part: part["KeyType"])  # HASH, then RANGE
    return ", ".join(part["AttributeName"] for part in order)


def _of_keys(name: str, shape: Json, there: Json, deploy: str) -> Iterator[Check]:
    wanted, found = _keys(shape["KeySchema"]), _keys(there["KeySchema"])
    if wanted != found:
        yield Check(name, Mark.FAIL, f"its keys are {found}", wanted, _ANEW + deploy)
    kinds = {one["AttributeName"]: one["AttributeType"] for one in there["AttributeDefinitions"]}
    for one in shape["AttributeDefinitions"]:
        attribute, kind = one["AttributeName"], one["AttributeType"]
        if kinds.get(attribute, kind) != kind:
            detail = f"{attribute} is of type {kinds[attribute]}"
            yield Check(name, Mark.FAIL, detail, f"type {kind}", _ANEW + deploy)


def _of_indexes(name: str, shape: Json, there: Json, deploy: str) -> Iterator[Check]:
    wanted = {one["IndexName"]: one for one in shape.get("GlobalSecondaryIndexes", ())}
    found = {one["IndexName"]: one for one in there.get("GlobalSecondaryIndexes", ())}
    for index, one in wanted.items():
        what = f"index {index}"
        if index not in found:
            yield Check(name, Mark.FAIL, f"{what} is missing", _form(one), deploy)
        elif _form(one) != _form(found[index]):
            yield Check(name, Mark.FAIL, f"{what} has {_form(found[index])}", _form(one), deploy)
        elif (status := found[index].get("IndexStatus", "ACTIVE")) != "ACTIVE":
            yield Check(name, Mark.WARN, f"{what} is {status}", "ACTIVE", "wait until it is built")
    for index in found.keys() - wanted.keys():
        detail = f"index {index} is read by nobody and paid for at each write"
        yield Check(name, Mark.WARN, detail, "no such index", "delete it")


def _form(index: Json) -> str:
    projection = index["Projection"]
    beside = sorted(projection.get("NonKeyAttributes") or ())
    kept = " ".join([projection["ProjectionType"], *beside])
    return f"{_keys(index['KeySchema'])} ({kept})"


def _of_stream(name: str, shape: Json, there: Json, deploy: str) -> Iterator[Check]:
    if "StreamSpecification" not in shape:
        return
    wanted = shape["StreamSpecification"]["StreamViewType"]
    stream = there.get("StreamSpecification") or {}
    found = stream.get("StreamViewType") if stream.get("StreamEnabled") else None
    if found != wanted:
        detail = f"its stream shows {found}" if found else "it has no stream: no event is told"
        yield Check(name, Mark.FAIL, detail, f"a stream of {wanted}", deploy)


def _of_expiry(name: str, shape: Json, reply: Reply, deploy: str) -> Iterator[Check]:
    if reply.answer is None:
        yield reply.unexpected(name)
        return
    wanted = shape.get("TimeToLiveSpecification", {}).get("AttributeName")
    described = reply.answer.get("TimeToLiveDescription", {})
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    found = described.get("AttributeName") if on else None
    if found == wanted:
        return
    detail = f"it expires by {found}" if on else "nothing in it expires"
    if wanted is None:
        # The template does not speak of it, so deploying again would leave it so.
        remedy = "switch off its time to live: what is in it must be kept"
        yield Check(name, Mark.FAIL, detail, "no expiry", remedy)
    else:
        yield Check(name, Mark.WARN, detail, f"expiry by {wanted}", deploy)


async def bucket(asking: Asking, names: Names, account: str, deploy: str) -> list[Check]:
    """What is right and wrong with where blobs are kept."""
    if not names.bucket:
        detail = "aws.bucket is not set: where are blobs to be kept?"
        remedy = f"set LONGSHORE_AWS_BUCKET to what `{deploy.strip('`')}` has printed"
        usual = f"longshore-{names.stage}-{account}-REGION, unless you named it yourself"
        return [Check("bucket", Mark.FAIL, detail, usual, remedy)]
    name = f"bucket {names.bucket}"
    head, blocked, encrypted = await asyncio.gather(
        asking.ask("s3", "head_bucket", Bucket=names.bucket),
        asking.ask("s3", "get_public_access_block", Bucket=names.bucket),
        asking.ask("s3", "get_bucket_encryption", Bucket=names.bucket),
    )
    if head.answer is None:
        return [_no_bucket(name, head, deploy)]
    problems = [*_of_blocks(name, blocked, deploy), *_of_encryption(name, encrypted, deploy)]
    return problems or [Check(name, Mark.OK, "it is there, private and encrypted")]


def _no_bucket(name: str, head: Reply, deploy: str) -> Check:
    if head.code in ("404", "NoSuchBucket"):
        return Check(name, Mark.FAIL, "it is not there", "a bucket", deploy)
    if head.code in DENIED:
        detail = "it may not be used: it is somebody else's, or this identity lacks s3:ListBucket"
        return Check(name, Mark.FAIL, detail, remedy="correct aws.bucket, or allow it")
    if head.code in ("301", "PermanentRedirect", "400"):
        return Check(name, Mark.FAIL, "it is in another region", remedy="correct aws.region")
    return head.unexpected(name)


def _of_blocks(name: str, reply: Reply, deploy: str) -> Iterator[Check]:
    if reply.answer is None and reply.code != "NoSuchPublicAccessBlockConfiguration":
        yield reply.unexpected(name)
        return
    found: Mapping[str, bool] = (reply.answer or {}).get("PublicAccessBlockConfiguration", {})
    if open_ := [block for block in _BLOCKS if not found.get(block)]:
        detail = f"it can be made public: {', '.join(open_)} is off"
        yield Check(name, Mark.FAIL, detail, "all public access blocked", deploy)


def _of_encryption(name: str, reply: Reply, deploy: str) -> Iterator[Check]:
    if reply.code == "ServerSideEncryptionConfigurationNotFoundError":
        yield Check(name, Mark.WARN, "it has no rule for encryption", "AES256 or KMS", deploy)
    elif reply.answer is None:
        yield reply.unexpected(name)
