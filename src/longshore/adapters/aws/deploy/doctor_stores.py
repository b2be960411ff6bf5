"""Tables and the bucket, held against what the stacks make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from longshore.adapters.aws.deploy.doctor_probe import ACCESS_DENIED_CODES, Probe, ProbeResult
from longshore.adapters.aws.names import Names
from longshore.core.inspection import Check, CheckStatus

Json = dict[str, Any]

_NO_TABLE_CODE = "ResourceNotFoundException"
_PUBLIC_ACCESS_BLOCKS = (
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "IgnorePublicAcls",
    "RestrictPublicBuckets",
)
_RECREATE_REMEDY = (
    "keys cannot be changed: use another stage, or move this table out of the way; then "
)


async def check_tables(probe: Probe, expected: list[Json], deploy_command: str) -> list[Check]:
    """A check for each table, as its resource in the template says."""
    found = await asyncio.gather(
        *(_check_table(probe, shape, deploy_command) for shape in expected)
    )
    return [check for checks in found for check in checks]


async def _check_table(probe: Probe, schema: Json, deploy_command: str) -> list[Check]:
    table = schema["TableName"]
    name = f"table {table}"
    reply, expiry = await asyncio.gather(
        probe.call("dynamodb", "describe_table", TableName=table),
        probe.call("dynamodb", "describe_time_to_live", TableName=table),
    )
    if reply.code == _NO_TABLE_CODE:
        return [Check(name, CheckStatus.FAIL, "it is not there", "a table", deploy_command)]
    if reply.response is None:
        return [reply.unexpected_check(name)]
    there = reply.response["Table"]
    problems = [
        *_key_problems(name, schema, there, deploy_command),
        *_index_problems(name, schema, there, deploy_command),
        *_stream_problems(name, schema, there, deploy_command),
        *_ttl_problems(name, schema, expiry, deploy_command),
    ]
    if (status := there.get("TableStatus")) != "ACTIVE":
        problems.append(Check(name, CheckStatus.WARN, f"it is {status}", "ACTIVE", "wait a little"))
    if _is_provisioned(there):
        detail = "its capacity is limited, and what is above is throttled"
        problems.append(Check(name, CheckStatus.WARN, detail, "pay per request", deploy_command))
    if problems:
        return problems
    count = len(schema.get("GlobalSecondaryIndexes", ()))
    parts = [f"{count} indexes"] if count else []
    parts += ["a stream"] if "StreamSpecification" in schema else []
    parts += ["expiry"] if "TimeToLiveSpecification" in schema else []
    return [Check(name, CheckStatus.OK, f"as deployed: {', '.join(['keys', *parts])}")]


def _is_provisioned(description: Json) -> bool:
    if description.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        return False
    return bool(description.get("ProvisionedThroughput", {}).get("WriteCapacityUnits"))


def _key_names(schema: list[Json]) -> str:
    order = sorted(schema, key=lambda part: part["KeyType"])  # HASH, then RANGE
    return ", ".join(part["AttributeName"] for part in order)


def _key_problems(
    name: str, schema: Json, description: Json, deploy_command: str
) -> Iterator[Check]:
    wanted, found = _key_names(schema["KeySchema"]), _key_names(description["KeySchema"])
    if wanted != found:
        yield Check(
            name,
            CheckStatus.FAIL,
            f"its keys are {found}",
            wanted,
            _RECREATE_REMEDY + deploy_command,
        )
    kinds = {
        one["AttributeName"]: one["AttributeType"] for one in description["AttributeDefinitions"]
    }
    for one in schema["AttributeDefinitions"]:
        attribute, kind = one["AttributeName"], one["AttributeType"]
        if kinds.get(attribute, kind) != kind:
            detail = f"{attribute} is of type {kinds[attribute]}"
            yield Check(
                name, CheckStatus.FAIL, detail, f"type {kind}", _RECREATE_REMEDY + deploy_command
            )


def _index_problems(
    name: str, schema: Json, description: Json, deploy_command: str
) -> Iterator[Check]:
    wanted = {one["IndexName"]: one for one in schema.get("GlobalSecondaryIndexes", ())}
    found = {one["IndexName"]: one for one in description.get("GlobalSecondaryIndexes", ())}
    for index, one in wanted.items():
        what = f"index {index}"
        if index not in found:
            yield Check(
                name, CheckStatus.FAIL, f"{what} is missing", _index_text(one), deploy_command
            )
        elif _index_text(one) != _index_text(found[index]):
            yield Check(
                name,
                CheckStatus.FAIL,
                f"{what} has {_index_text(found[index])}",
                _index_text(one),
                deploy_command,
            )
        elif (status := found[index].get("IndexStatus", "ACTIVE")) != "ACTIVE":
            yield Check(
                name, CheckStatus.WARN, f"{what} is {status}", "ACTIVE", "wait until it is built"
            )
    for index in found.keys() - wanted.keys():
        detail = f"index {index} is read by nobody and paid for at each write"
        yield Check(name, CheckStatus.WARN, detail, "no such index", "delete it")


def _index_text(index: Json) -> str:
    projection = index["Projection"]
    beside = sorted(projection.get("NonKeyAttributes") or ())
    kept = " ".join([projection["ProjectionType"], *beside])
    return f"{_key_names(index['KeySchema'])} ({kept})"


def _stream_problems(
    name: str, schema: Json, description: Json, deploy_command: str
) -> Iterator[Check]:
    if "StreamSpecification" not in schema:
        return
    wanted = schema["StreamSpecification"]["StreamViewType"]
    stream = description.get("StreamSpecification") or {}
    found = stream.get("StreamViewType") if stream.get("StreamEnabled") else None
    if found != wanted:
        detail = f"its stream shows {found}" if found else "it has no stream: no event is told"
        yield Check(name, CheckStatus.FAIL, detail, f"a stream of {wanted}", deploy_command)


def _ttl_problems(
    name: str, schema: Json, result: ProbeResult, deploy_command: str
) -> Iterator[Check]:
    if result.response is None:
        yield result.unexpected_check(name)
        return
    wanted = schema.get("TimeToLiveSpecification", {}).get("AttributeName")
    described = result.response.get("TimeToLiveDescription", {})
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    found = described.get("AttributeName") if on else None
    if found == wanted:
        return
    detail = f"it expires by {found}" if on else "nothing in it expires"
    if wanted is None:
        # The template does not speak of it, so deploying again would leave it so.
        remedy = "switch off its time to live: what is in it must be kept"
        yield Check(name, CheckStatus.FAIL, detail, "no expiry", remedy)
    else:
        yield Check(name, CheckStatus.WARN, detail, f"expiry by {wanted}", deploy_command)


async def check_bucket(
    probe: Probe, names: Names, account: str, deploy_command: str
) -> list[Check]:
    """What is right and wrong with where blobs are kept."""
    if not names.bucket:
        detail = "aws.bucket is not set: where are blobs to be kept?"
        remedy = f"set LONGSHORE_AWS_BUCKET to what `{deploy_command.strip('`')}` has printed"
        usual = f"longshore-{names.stage}-{account}-REGION, unless you named it yourself"
        return [Check("bucket", CheckStatus.FAIL, detail, usual, remedy)]
    name = f"bucket {names.bucket}"
    head, blocked, encrypted = await asyncio.gather(
        probe.call("s3", "head_bucket", Bucket=names.bucket),
        probe.call("s3", "get_public_access_block", Bucket=names.bucket),
        probe.call("s3", "get_bucket_encryption", Bucket=names.bucket),
    )
    if head.response is None:
        return [_bucket_unavailable(name, head, deploy_command)]
    problems = [
        *_public_access_problems(name, blocked, deploy_command),
        *_encryption_problems(name, encrypted, deploy_command),
    ]
    return problems or [Check(name, CheckStatus.OK, "it is there, private and encrypted")]


def _bucket_unavailable(name: str, head: ProbeResult, deploy_command: str) -> Check:
    if head.code in ("404", "NoSuchBucket"):
        return Check(name, CheckStatus.FAIL, "it is not there", "a bucket", deploy_command)
    if head.code in ACCESS_DENIED_CODES:
        detail = "it may not be used: it is somebody else's, or this identity lacks s3:ListBucket"
        return Check(name, CheckStatus.FAIL, detail, remedy="correct aws.bucket, or allow it")
    if head.code in ("301", "PermanentRedirect", "400"):
        return Check(name, CheckStatus.FAIL, "it is in another region", remedy="correct aws.region")
    return head.unexpected_check(name)


def _public_access_problems(name: str, result: ProbeResult, deploy_command: str) -> Iterator[Check]:
    if result.response is None and result.code != "NoSuchPublicAccessBlockConfiguration":
        yield result.unexpected_check(name)
        return
    found: Mapping[str, bool] = (result.response or {}).get("PublicAccessBlockConfiguration", {})
    if open_ := [block for block in _PUBLIC_ACCESS_BLOCKS if not found.get(block)]:
        detail = f"it can be made public: {', '.join(open_)} is off"
        yield Check(name, CheckStatus.FAIL, detail, "all public access blocked", deploy_command)


def _encryption_problems(name: str, result: ProbeResult, deploy_command: str) -> Iterator[Check]:
    if result.code == "ServerSideEncryptionConfigurationNotFoundError":
        yield Check(
            name, CheckStatus.WARN, "it has no rule for encryption", "AES256 or KMS", deploy_command
        )
    elif result.response is None:
        yield result.unexpected_check(name)
