"""A stage on AWS: its stacks are deployed in order and deleted in the opposite order.

Everything is computed before the first change: an invalid configuration, or a zip that cannot be
built, leaves the account unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.deploy.package import FunctionPackage, LambdaRuntime, build_package
from longshore.adapters.aws.deploy.stack_client import CloudFormationStacks, StackProtected
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig, with_bucket
from longshore.adapters.aws.deploy.stacks.template import (
    INFRASTRUCTURE,
    SIZE_LIMIT_BYTES,
    STACKS,
    is_enabled,
    stack_name,
    stack_parameters,
    template_text,
    templates,
)
from longshore.core.inspection import (
    CloudAccount,
    DeployProgress,
    DeployProgressKind,
    ReportProgress,
    StackState,
)
from longshore.errors import BackendRejected, BackendUnavailable, ConfigurationError
from longshore.ports.clock import Clock

_POLL_INTERVAL: Final = timedelta(seconds=2)
_STAND_IN_POLL_INTERVAL: Final = timedelta(milliseconds=100)
_DELETE_LIMIT: Final = 1000
_CODE: Final = "code"
_TRANSIENT_CODES: Final = {"InternalError", "ServiceUnavailable", "SlowDown"}


class CloudFormationDeployment:
    """Deploys the stacks of one stage, reports their state, and deletes them."""

    def __init__(
        self,
        aws: AwsClient,
        clock: Clock,
        config: StageConfig,
        *,
        dispatcher_events: tuple[str, ...],
        stand_in: bool = False,
        package: FunctionPackage | None = None,
    ) -> None:
        """Create the deployment.

        Args:
            dispatcher_events: The types of events that the dispatcher receives.
            stand_in: The endpoint is an emulator that runs functions on this machine.
            package: A package that was built before.
        """
        self._aws = aws
        self._config = config
        self._dispatcher_events = dispatcher_events
        self._stand_in = stand_in
        self._package = package
        poll_interval = _STAND_IN_POLL_INTERVAL if stand_in else _POLL_INTERVAL
        self._stacks = CloudFormationStacks(aws, clock, poll_interval=poll_interval)

    async def account(self) -> CloudAccount:
        """Returns the account in which the stage is deployed; called before anything is changed."""
        caller = await self._aws.call("sts", "get_caller_identity")
        client = await self._aws.client("sts")
        return CloudAccount(
            id=caller["Account"], region=client.meta.region_name, caller=caller["Arn"]
        )

    async def deploy(self, report: ReportProgress) -> Mapping[str, str]:
        """Deploy all stacks. Returns the outputs that clients need, by name.

        Completes or repairs what an earlier call left unfinished; changes nothing that is current.

        Raises:
            StackFailed: with the first reason; the changes to that stack are rolled back.
        """
        account = await self.account()
        config = with_bucket(self._config, account.id, account.region)
        texts = _check_template_sizes(config, self._dispatcher_events)
        report(DeployProgress(stack=_CODE, kind=DeployProgressKind.STARTED, text="build"))
        package = self._package
        if package is None:
            package = await asyncio.to_thread(build_package, self._runtime())
        for stack, text in texts.items():
            if not is_enabled(config, stack):
                continue
            name = stack_name(config.stage, stack)
            parameters = stack_parameters(config, stack, package.key)
            changed = await self._stacks.apply(name, text, parameters, report, stack)
            report(
                DeployProgress(
                    stack=stack,
                    kind=DeployProgressKind.DONE if changed else DeployProgressKind.UNCHANGED,
                )
            )
            await self._protect(name)
            if stack == INFRASTRUCTURE:
                await self._upload_package(package, str(config.bucket), report)
        return {key: text for state in await self.status() for key, text in state.outputs.items()}

    def _runtime(self) -> LambdaRuntime | None:
        if self._stand_in:
            return None
        functions = self._config.functions
        return LambdaRuntime(python=functions.python, architecture=functions.architecture)

    async def _protect(self, name: str) -> None:
        stack = await self._stacks.describe(name)
        if stack and bool(stack.get("EnableTerminationProtection")) != self._config.protected:
            await self._stacks.protect(name, on=self._config.protected)

    async def _upload_package(
        self, package: FunctionPackage, bucket: str, report: ReportProgress
    ) -> None:
        target: dict[str, Any] = {"Bucket": bucket, "Key": package.key}
        try:
            await self._aws.call("s3", "head_object", expects=("404", "NoSuchKey"), **target)
        except CallRefused:
            size = f"{len(package.data) / 1e6:.0f} MB"
            report(
                DeployProgress(
                    stack=_CODE, kind=DeployProgressKind.RESOURCE, text=size, resource=package.key
                )
            )
            await self._aws.call("s3", "put_object", alters=True, Body=package.data, **target)
            report(DeployProgress(stack=_CODE, kind=DeployProgressKind.DONE))
        else:
            report(DeployProgress(stack=_CODE, kind=DeployProgressKind.UNCHANGED))

    async def destroy(self, report: ReportProgress, *, with_data: bool) -> None:
        """Delete all stacks; tables and blobs only ``with_data``.

        Raises:
            StackProtected: a stack must not be deleted; none was deleted.
        """
        account = await self.account()
        config = with_bucket(self._config, account.id, account.region)
        for stack in STACKS:
            name = stack_name(config.stage, stack)
            description = await self._stacks.describe(name)
            if description and description.get("EnableTerminationProtection"):
                advice = "set `protected: false` for the stage and deploy it first"
                raise StackProtected(name, advice)
        for stack in reversed(STACKS):
            name = stack_name(config.stage, stack)
            if await self._stacks.delete(name, report, stack):
                report(DeployProgress(stack=stack, kind=DeployProgressKind.DONE))
        if with_data:
            await self._remove_data(config, report)
            return
        for name in [*config.names.tables, f"bucket {config.bucket}"]:
            report(DeployProgress(stack="data", kind=DeployProgressKind.RETAINED, resource=name))

    async def _remove_data(self, config: StageConfig, report: ReportProgress) -> None:
        for name in config.names.tables:
            with suppress(CallRefused):
                await self._aws.call(
                    "dynamodb",
                    "delete_table",
                    alters=True,
                    expects=("ResourceNotFoundException",),
                    TableName=name,
                )
                report(
                    DeployProgress(
                        stack="data",
                        kind=DeployProgressKind.RESOURCE,
                        resource=name,
                        text="deleted",
                    )
                )
        bucket = str(config.bucket)
        with suppress(CallRefused):
            await self._empty_bucket(bucket)
            await self._aws.call(
                "s3", "delete_bucket", alters=True, expects=("NoSuchBucket",), Bucket=bucket
            )
            report(
                DeployProgress(
                    stack="data", kind=DeployProgressKind.RESOURCE, resource=bucket, text="deleted"
                )
            )

    async def _empty_bucket(self, bucket: str) -> None:
        target: dict[str, Any] = {"expects": ("NoSuchBucket",), "Bucket": bucket}
        while True:
            page = await self._aws.call("s3", "list_objects_v2", MaxKeys=_DELETE_LIMIT, **target)
            keys = [{"Key": item["Key"]} for item in page.get("Contents", [])]
            if not keys:
                break
            answer = await self._aws.call(
                "s3",
                "delete_objects",
                alters=True,
                Delete={"Objects": keys, "Quiet": True},
                **target,
            )
            errors = answer.get("Errors", [])
            if len(errors) == len(keys):  # otherwise the loop would not end
                code = str(errors[0].get("Code"))
                kind = BackendUnavailable if code in _TRANSIENT_CODES else BackendRejected
                message = f"s3.delete_objects: {code} of {errors[0].get('Key')}"
                raise kind(message)
        uploads = await self._aws.call("s3", "list_multipart_uploads", **target)
        for item in uploads.get("Uploads", []):
            upload: dict[str, Any] = {"Key": item["Key"], "UploadId": item["UploadId"]}
            await self._aws.call("s3", "abort_multipart_upload", alters=True, **upload, **target)

    async def status(self) -> Sequence[StackState]:
        """Returns the state of every stack, in the order of deployment."""
        names = {stack: stack_name(self._config.stage, stack) for stack in STACKS}
        return [
            _stack_state(stack, name, await self._stacks.describe(name))
            for stack, name in names.items()
        ]


def _check_template_sizes(
    config: StageConfig, dispatcher_events: tuple[str, ...]
) -> dict[str, str]:
    texts = {
        name: template_text(template)
        for name, template in templates(config, dispatcher_events=dispatcher_events).items()
    }
    problems = [
        f"the template of the stack {name} has {len(text):,} bytes, and CloudFormation takes at"
        f" most {SIZE_LIMIT_BYTES:,}: use fewer queues in the stage"
        for name, text in texts.items()
        if len(text.encode()) > SIZE_LIMIT_BYTES
    ]
    if problems:
        raise ConfigurationError(problems)
    return texts


def _stack_state(stack: str, name: str, description: Mapping[str, Any] | None) -> StackState:
    if description is None:
        return StackState(name=stack, full_name=name, status=None, outputs={})
    changed: datetime | None = description.get("LastUpdatedTime") or description.get("CreationTime")
    return StackState(
        name=stack,
        full_name=name,
        status=description["StackStatus"],
        changed_at=changed.astimezone(UTC) if changed else None,
        protected=bool(description.get("EnableTerminationProtection")),
        outputs={item["OutputKey"]: item["OutputValue"] for item in description.get("Outputs", [])},
    )
