"""A stage on AWS: deployed stack after stack, taken down in the opposite order.

Everything is computed before anything is changed: a configuration that is wrong, or a zip that
cannot be built, leaves the account as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from longshore.adapters.aws.calls import Aws, Refused
from longshore.adapters.aws.deploying_package import Package, Runtime, build
from longshore.adapters.aws.deploying_stack import Protected, Stacks
from longshore.adapters.aws.shapes import table_shapes
from longshore.adapters.aws.stacks import (
    INFRASTRUCTURE,
    STACKS,
    is_wanted,
    parameters,
    stack_name,
    templates,
)
from longshore.adapters.aws.stacks.config import StageConfig, with_bucket
from longshore.adapters.aws.stacks.parts import SIZE_LIMIT_BYTES, text_of
from longshore.errors import BackendRejected, BackendUnavailable, ConfigurationError
from longshore.ports.clock import Clock
from longshore.ports.deploying import Account, StackState, Step, StepKind, Tell

_LOOK_EVERY: Final = timedelta(seconds=2)
_LOOK_EVERY_AT_HAND: Final = timedelta(milliseconds=100)
_OBJECTS_AT_ONCE: Final = 1000
_CODE: Final = "code"
_STUMBLED: Final = {"InternalError", "ServiceUnavailable", "SlowDown"}


class CloudFormationDeployment:
    """See ``ports.deploying.Deployment``."""

    def __init__(
        self,
        aws: Aws,
        clock: Clock,
        config: StageConfig,
        *,
        wakes: tuple[str, ...],
        stand_in: bool = False,
        package: Package | None = None,
    ) -> None:
        """See the class.

        Args:
            wakes: Types of the events that the dispatcher wants to hear of.
            stand_in: It is not AWS itself, and runs functions on this machine.
            package: One that was built before.
        """
        self._aws = aws
        self._config = config
        self._wakes = wakes
        self._stand_in = stand_in
        self._package = package
        every = _LOOK_EVERY_AT_HAND if stand_in else _LOOK_EVERY
        self._stacks = Stacks(aws, clock, look_every=every)

    async def account(self) -> Account:
        """See ``Deployment``."""
        found = await self._aws.call("sts", "get_caller_identity")
        client = await self._aws.client("sts")
        return Account(id=found["Account"], region=client.meta.region_name, caller=found["Arn"])

    async def deploy(self, tell: Tell) -> Mapping[str, str]:
        """See ``Deployment``."""
        account = await self.account()
        config = with_bucket(self._config, account.id, account.region)
        texts = _checked(config, self._wakes)
        tell(Step(stack=_CODE, kind=StepKind.BEGUN, text="build"))
        package = self._package
        if package is None:
            package = await asyncio.to_thread(build, self._runtime())
        for stack, text in texts.items():
            if not is_wanted(config, stack):
                continue
            name = stack_name(config.stage, stack)
            given = parameters(config, stack, package.key)
            changed = await self._stacks.apply(name, text, given, tell, stack)
            tell(Step(stack=stack, kind=StepKind.DONE if changed else StepKind.UNCHANGED))
            await self._protect(name)
            if stack == INFRASTRUCTURE:
                await self._send(package, str(config.bucket), tell)
        return {key: text for one in await self.status() for key, text in one.outputs.items()}

    def _runtime(self) -> Runtime | None:
        if self._stand_in:
            return None
        functions = self._config.functions
        return Runtime(python=functions.python, architecture=functions.architecture)

    async def _protect(self, name: str) -> None:
        stack = await self._stacks.look(name)
        if stack and bool(stack.get("EnableTerminationProtection")) != self._config.protected:
            await self._stacks.protect(name, on=self._config.protected)

    async def _send(self, package: Package, bucket: str, tell: Tell) -> None:
        where: dict[str, Any] = {"Bucket": bucket, "Key": package.key}
        try:
            await self._aws.call("s3", "head_object", expects=("404", "NoSuchKey"), **where)
        except Refused:
            size = f"{len(package.data) / 1e6:.0f} MB"
            tell(Step(stack=_CODE, kind=StepKind.RESOURCE, text=size, resource=package.key))
            await self._aws.call("s3", "put_object", alters=True, Body=package.data, **where)
            tell(Step(stack=_CODE, kind=StepKind.DONE))
        else:
            tell(Step(stack=_CODE, kind=StepKind.UNCHANGED))

    async def destroy(self, tell: Tell, *, with_data: bool) -> None:
        """See ``Deployment``."""
        account = await self.account()
        config = with_bucket(self._config, account.id, account.region)
        for stack in STACKS:
            name = stack_name(config.stage, stack)
            found = await self._stacks.look(name)
            if found and found.get("EnableTerminationProtection"):
                advice = "set `protected: false` for the stage and deploy it first"
                raise Protected(name, advice)
        for stack in reversed(STACKS):
            name = stack_name(config.stage, stack)
            if await self._stacks.remove(name, tell, stack):
                tell(Step(stack=stack, kind=StepKind.DONE))
        if with_data:
            await self._remove_data(config, tell)
            return
        kept = [shape["TableName"] for shape in table_shapes(config.names)]
        for name in [*kept, f"bucket {config.bucket}"]:
            tell(Step(stack="data", kind=StepKind.KEPT, resource=name))

    async def _remove_data(self, config: StageConfig, tell: Tell) -> None:
        for shape in table_shapes(config.names):
            name = shape["TableName"]
            with suppress(Refused):
                await self._aws.call(
                    "dynamodb",
                    "delete_table",
                    alters=True,
                    expects=("ResourceNotFoundException",),
                    TableName=name,
                )
                tell(Step(stack="data", kind=StepKind.RESOURCE, resource=name, text="deleted"))
        bucket = str(config.bucket)
        with suppress(Refused):
            await self._empty(bucket)
            await self._aws.call(
                "s3", "delete_bucket", alters=True, expects=("NoSuchBucket",), Bucket=bucket
            )
            tell(Step(stack="data", kind=StepKind.RESOURCE, resource=bucket, text="deleted"))

    async def _empty(self, bucket: str) -> None:
        where: dict[str, Any] = {"expects": ("NoSuchBucket",), "Bucket": bucket}
        while True:
            page = await self._aws.call("s3", "list_objects_v2", MaxKeys=_OBJECTS_AT_ONCE, **where)
            keys = [{"Key": one["Key"]} for one in page.get("Contents", [])]
            if not keys:
                break
            answer = await self._aws.call(
                "s3",
                "delete_objects",
                alters=True,
                Delete={"Objects": keys, "Quiet": True},
                **where,
            )
            left = answer.get("Errors", [])
            if len(left) == len(keys):  # or it would be asked for ever
                code = str(left[0].get("Code"))
                kind = BackendUnavailable if code in _STUMBLED else BackendRejected
                message = f"s3.delete_objects: {code} of {left[0].get('Key')}"
                raise kind(message)
        uploads = await self._aws.call("s3", "list_multipart_uploads", **where)
        for one in uploads.get("Uploads", []):
            part: dict[str, Any] = {"Key": one["Key"], "UploadId": one["UploadId"]}
            await self._aws.call("s3", "abort_multipart_upload", alters=True, **part, **where)

    async def status(self) -> Sequence[StackState]:
        """See ``Deployment``."""
        found = []
        for stack in STACKS:
            name = stack_name(self._config.stage, stack)
            facts = await self._stacks.look(name)
            found.append(_state(stack, name, facts))
        return found


def _checked(config: StageConfig, wakes: tuple[str, ...]) -> dict[str, str]:
    texts = {name: text_of(one) for name, one in templates(config, wakes=wakes).items()}
    problems = [
        f"the stack {name} would have {len(text):,} bytes, and CloudFormation takes"
        f" {SIZE_LIMIT_BYTES:,}: have fewer queues in a stage"
        for name, text in texts.items()
        if len(text.encode()) > SIZE_LIMIT_BYTES
    ]
    if problems:
        raise ConfigurationError(problems)
    return texts


def _state(stack: str, name: str, facts: Mapping[str, Any] | None) -> StackState:
    if facts is None:
        return StackState(name=stack, full_name=name, status=None, outputs={})
    changed: datetime | None = facts.get("LastUpdatedTime") or facts.get("CreationTime")
    return StackState(
        name=stack,
        full_name=name,
        status=facts["StackStatus"],
        changed_at=changed.astimezone(UTC) if changed else None,
        protected=bool(facts.get("EnableTerminationProtection")),
        outputs={one["OutputKey"]: one["OutputValue"] for one in facts.get("Outputs", [])},
    )
