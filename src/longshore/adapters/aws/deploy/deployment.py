"""A stage on AWS: its stacks are deployed in order and deleted in the opposite order.

Everything is computed before the first change: an invalid configuration, or a zip that cannot be
built, leaves the account unchanged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.deploy.package import FunctionPackage, build_package
from longshore.adapters.aws.deploy.stack_client import CloudFormationStack
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig, with_bucket
from longshore.adapters.aws.deploy.stacks.template import (
    INFRASTRUCTURE,
    STACKS,
    is_enabled,
    stack_name,
    stack_parameters,
    templates,
)
from longshore.core.inspection import CloudAccount, ReportProgress, StackState
from longshore.errors import BackendRejected, BackendUnavailable, ConfigurationError, Conflict
from longshore.ports.clock import Clock

_POLL_INTERVAL: Final = timedelta(seconds=2)
_STAND_IN_POLL_INTERVAL: Final = timedelta(milliseconds=100)
_DELETE_LIMIT: Final = 1000
_SIZE_LIMIT_BYTES: Final = 51_200
_TRANSIENT_CODES: Final = {"InternalError", "ServiceUnavailable", "SlowDown"}


@dataclass(frozen=True, slots=True)
class CloudFormationDeployment:
    """Deploys the stacks of one stage, reports their state, and deletes them."""

    aws: AwsClient
    clock: Clock
    config: StageConfig
    dispatcher_events: tuple[str, ...]  # the types that the dispatcher receives
    stand_in: bool = False  # the endpoint is an emulator that runs functions on this machine
    package: FunctionPackage | None = None  # that was built before

    async def account(self) -> CloudAccount:
        """Returns the account in which the stage is deployed; called before anything is changed."""
        caller = await self.aws.call("sts", "get_caller_identity")
        client = await self.aws.client("sts")
        return CloudAccount(id=caller["Account"], region=client.meta.region_name)

    async def deploy(self, report: ReportProgress) -> Mapping[str, str]:
        """Deploy all stacks. Returns the outputs that clients need, by name.

        Completes or repairs what an earlier call left unfinished; changes nothing that is current.

        Raises:
            StackFailed: with the first reason; the changes to that stack are rolled back.
        """
        config = with_bucket(self.config, await self.account())
        texts = _template_texts(config, self.dispatcher_events)
        report("code: build")
        package = self.package
        if package is None:
            runtime = None if self.stand_in else config.functions
            package = await asyncio.to_thread(build_package, runtime)
        for short_name, text in texts.items():
            if not is_enabled(config, short_name):
                continue
            stack = self._stack(short_name, report)
            changed = await stack.apply(text, stack_parameters(config, short_name, package.key))
            report(f"{short_name}: {'done' if changed else 'no changes'}")
            await stack.protect(on=config.protected)
            if short_name == INFRASTRUCTURE:
                await self._upload_package(package, str(config.bucket), report)
        return {key: text for state in await self.status() for key, text in state.outputs.items()}

    def _stack(
        self, short_name: str, report: ReportProgress = lambda _: None
    ) -> CloudFormationStack:
        return CloudFormationStack(
            self.aws,
            self.clock,
            _STAND_IN_POLL_INTERVAL if self.stand_in else _POLL_INTERVAL,
            stack_name(self.config.stage, short_name),
            short_name,
            report,
        )

    async def _upload_package(
        self, package: FunctionPackage, bucket: str, report: ReportProgress
    ) -> None:
        target: dict[str, Any] = {"Bucket": bucket, "Key": package.key}
        try:
            await self.aws.call("s3", "head_object", expects=("404", "NoSuchKey"), **target)
        except CallRefused:
            report(f"  {package.key}  {len(package.data) / 1e6:.0f} MB")
            await self.aws.call("s3", "put_object", alters=True, Body=package.data, **target)
            report("code: done")
        else:
            report("code: no changes")

    async def destroy(self, report: ReportProgress, *, with_data: bool) -> None:
        """Delete all stacks; tables and blobs only ``with_data``.

        Raises:
            Conflict: a stack is protected against deletion; none was deleted.
        """
        config = with_bucket(self.config, await self.account())
        for state in await self.status():
            if state.protected:
                raise Conflict(
                    f"{state.full_name} is protected against deletion; set `protected: false` for"
                    " the stage and deploy it first"
                )
        for short_name in reversed(STACKS):
            if await self._stack(short_name, report).delete():
                report(f"{short_name}: done")
        if with_data:
            await self._remove_data(config, report)
            return
        for name in [*config.names.tables, f"bucket {config.bucket}"]:
            report(f"  {name}  retained")

    async def _remove_data(self, config: StageConfig, report: ReportProgress) -> None:
        for name in config.names.tables:
            with suppress(CallRefused):
                await self.aws.call(
                    "dynamodb",
                    "delete_table",
                    alters=True,
                    expects=("ResourceNotFoundException",),
                    TableName=name,
                )
                report(f"  {name}  deleted")
        bucket = str(config.bucket)
        with suppress(CallRefused):
            await self._empty_bucket(bucket)
            await self.aws.call(
                "s3", "delete_bucket", alters=True, expects=("NoSuchBucket",), Bucket=bucket
            )
            report(f"  {bucket}  deleted")

    async def _empty_bucket(self, bucket: str) -> None:
        target: dict[str, Any] = {"expects": ("NoSuchBucket",), "Bucket": bucket}
        while True:
            page = await self.aws.call(
                "s3", "list_object_versions", MaxKeys=_DELETE_LIMIT, **target
            )
            keys = [
                {"Key": item["Key"], "VersionId": item["VersionId"]}
                for item in (*page.get("Versions", []), *page.get("DeleteMarkers", []))
            ]
            if not keys:
                break
            objects = {"Objects": keys, "Quiet": True}
            answer = await self.aws.call(
                "s3", "delete_objects", alters=True, Delete=objects, **target
            )
            errors = answer.get("Errors", [])
            if len(errors) == len(keys):  # otherwise the loop would not end
                code = str(errors[0].get("Code"))
                kind = BackendUnavailable if code in _TRANSIENT_CODES else BackendRejected
                raise kind(f"s3.delete_objects: {code} of {errors[0].get('Key')}")
        uploads = await self.aws.call("s3", "list_multipart_uploads", **target)
        for item in uploads.get("Uploads", []):
            upload: dict[str, Any] = {"Key": item["Key"], "UploadId": item["UploadId"]}
            await self.aws.call("s3", "abort_multipart_upload", alters=True, **upload, **target)

    async def status(self) -> Sequence[StackState]:
        """Returns the state of every stack, in the order of deployment."""
        return [await self._state(self._stack(short_name)) for short_name in STACKS]

    async def _state(self, stack: CloudFormationStack) -> StackState:
        description = await stack.describe() or {}
        changed = description.get("LastUpdatedTime") or description.get("CreationTime")
        outputs = description.get("Outputs", [])
        return StackState(
            name=stack.short_name,
            full_name=stack.name,
            status=description.get("StackStatus"),
            changed_at=changed.astimezone(UTC) if changed else None,
            protected=bool(description.get("EnableTerminationProtection")),
            outputs={item["OutputKey"]: item["OutputValue"] for item in outputs},
        )


def _template_texts(config: StageConfig, dispatcher_events: tuple[str, ...]) -> dict[str, str]:
    """The templates as CloudFormation takes them.

    Raises:
        ConfigurationError: a template is too long.
    """
    stacks = templates(config, dispatcher_events=dispatcher_events)
    texts = {name: json.dumps(template, separators=(",", ":")) for name, template in stacks.items()}
    problems = [
        f"the template of the stack {name} has {len(text):,} bytes, and CloudFormation takes at"
        f" most {_SIZE_LIMIT_BYTES:,}: use fewer queues in the stage"
        for name, text in texts.items()
        if len(text) > _SIZE_LIMIT_BYTES
    ]
    if problems:
        raise ConfigurationError(problems)
    return texts
