"""A stack on CloudFormation: changed by change sets, with progress from its events.

An operation of CloudFormation continues when its caller has died. So an operation in progress is
awaited, and what an earlier one left unfinished is repaired before the next one starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.core.inspection import ReportProgress
from longshore.errors import LongshoreError
from longshore.ports.clock import Clock

_CHANGE_SET: Final = "longshore-deploy"
_NO_STACK: Final = ("ValidationError",)
_NO_CHANGE_SET: Final = ("ChangeSetNotFound", "ChangeSetNotFoundException", *_NO_STACK)
_IN_PROGRESS: Final = "_IN_PROGRESS"
_REVIEW_IN_PROGRESS: Final = "REVIEW_IN_PROGRESS"
_DELETED: Final = "DELETE_COMPLETE"
# Stacks in these states cannot be updated; they are deleted and created again.
_UNUSABLE: Final = {"CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED"}
_ROLLBACK_FAILED: Final = "UPDATE_ROLLBACK_FAILED"
_SUCCEEDED: Final = {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}
_NO_CHANGES: Final = ("didn't contain changes", "No updates are to be performed")
_CANCELLED: Final = "cancelled"


class StackFailed(LongshoreError):
    """A stack could not be created, changed or deleted, with the first reason."""

    def __init__(self, stack: str, resource: str, reason: str) -> None:
        self.stack = stack
        self.resource = resource
        self.reason = reason
        super().__init__(stack, resource, reason)

    def __str__(self) -> str:
        subject = f"{self.stack}: {self.resource}" if self.resource else self.stack
        return f"{subject}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CloudFormationStack:
    """A stack of an account and region."""

    aws: AwsClient
    clock: Clock
    poll_interval: timedelta
    name: str
    short_name: str  # in progress reports
    report: ReportProgress

    async def describe(self, stack_id: str | None = None) -> AwsResponse | None:
        """The stack as CloudFormation describes it; a deleted stack only by its id."""
        try:
            answer = await self._call(
                "describe_stacks", expects=_NO_STACK, StackName=stack_id or self.name
            )
        except CallRefused:
            return None
        stack: AwsResponse = answer["Stacks"][0]
        return None if stack["StackStatus"] == _DELETED and stack_id is None else stack

    async def apply(self, template: str, parameters: Mapping[str, str]) -> bool:
        """Create or update the stack. Returns True if anything changed.

        Raises:
            StackFailed: the change failed and was rolled back.
        """
        kind = "UPDATE" if await self._can_be_updated() else "CREATE"
        await self._delete_change_set()
        change_set = await self._call(
            "create_change_set",
            alters=True,
            ChangeSetName=_CHANGE_SET,
            ChangeSetType=kind,
            TemplateBody=template,
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM"],
            # Tables and the bucket, if an earlier ``destroy`` retained them.
            ImportExistingResources=True,
        )
        if not await self._has_changes():
            await self._delete_change_set()
            return False
        await self._run(
            "execute_change_set",
            kind.lower(),
            change_set["StackId"],
            _SUCCEEDED,
            ChangeSetName=_CHANGE_SET,
        )
        return True

    async def protect(self, *, on: bool) -> None:
        """Set or remove the termination protection."""
        stack = await self.describe()
        if stack and bool(stack.get("EnableTerminationProtection")) != on:
            await self._call(
                "update_termination_protection", alters=True, EnableTerminationProtection=on
            )

    async def delete(self) -> bool:
        """Delete the stack. Returns False if there is none.

        Raises:
            StackFailed: a resource could not be deleted.
        """
        stack = await self.describe()
        if stack is None:
            return False
        await self._wait_until_settled(stack)
        await self._run("delete_stack", "delete", stack["StackId"], {_DELETED})
        return True

    async def _run(
        self,
        operation: str,
        verb: str,
        stack_id: str,
        succeeded: Collection[str],
        **parameters: Any,
    ) -> None:
        """Start an operation and wait for its end."""
        token = f"longshore-{uuid.uuid4()}"
        self.report(f"{self.short_name}: {verb}")
        await self._call(operation, alters=True, ClientRequestToken=token, **parameters)
        status, events = await self._follow(stack_id, token)
        if status in succeeded:
            return
        for event in events:
            reason = event.get("ResourceStatusReason", "")
            if event["ResourceStatus"].endswith("_FAILED") and _CANCELLED not in reason:
                resource = event["LogicalResourceId"]
                raise StackFailed(self.name, resource, reason or event["ResourceStatus"])
        raise StackFailed(self.name, "", f"it ended as {status}")

    async def _can_be_updated(self) -> bool:
        """Repair what an earlier operation left. Returns False if the stack must be created."""
        stack = await self.describe()
        if stack is None:
            return False
        status = await self._wait_until_settled(stack)
        if status == _ROLLBACK_FAILED:
            self.report(f"{self.short_name}: waiting: continues the rollback of an update")
            await self._call("continue_update_rollback", alters=True)
            status, _ = await self._follow(stack["StackId"])
        if status in _UNUSABLE:
            await self.delete()
        return status not in {*_UNUSABLE, _DELETED, _REVIEW_IN_PROGRESS}

    async def _wait_until_settled(self, stack: AwsResponse) -> str:
        """Wait for the operation in progress. Returns the status after it."""
        status = str(stack["StackStatus"])
        if not status.endswith(_IN_PROGRESS) or status == _REVIEW_IN_PROGRESS:
            return status
        self.report(f"{self.short_name}: waiting: {status}")
        status, _ = await self._follow(stack["StackId"])
        return status

    async def _delete_change_set(self) -> None:
        """Delete a change set that an earlier call left, or that has no changes."""
        with suppress(CallRefused):
            await self._call(
                "delete_change_set",
                alters=True,
                expects=_NO_CHANGE_SET,
                ChangeSetName=_CHANGE_SET,
            )

    async def _has_changes(self) -> bool:
        while True:
            change_set = await self._call("describe_change_set", ChangeSetName=_CHANGE_SET)
            if change_set["Status"] == "CREATE_COMPLETE":
                return True
            if change_set["Status"] == "FAILED":
                reason = change_set.get("StatusReason", "")
                if any(text in reason for text in _NO_CHANGES):
                    return False
                await self._delete_change_set()
                raise StackFailed(self.name, "", reason)
            await self.clock.sleep(self.poll_interval)

    async def _follow(
        self, stack_id: str, token: str | None = None
    ) -> tuple[str, list[AwsResponse]]:
        """Wait for the end of an operation and report its events.

        Args:
            token: Of the operation; None: it is not ours, and its events are not read.

        Returns:
            The final status, and the events.
        """
        reported = 0
        while True:
            description = await self.describe(stack_id)
            # Read before the events, so that the last events are reported too.
            status = str(description["StackStatus"]) if description else _DELETED
            events = await self._events(stack_id, token) if token else []
            for event in events[reported:]:
                self._report_event(event)
            reported = len(events)
            if not status.endswith(_IN_PROGRESS):
                return status, events
            await self.clock.sleep(self.poll_interval)

    async def _events(self, stack_id: str, token: str) -> list[AwsResponse]:
        """The events of one operation, in order."""
        result: list[AwsResponse] = []
        pages = self.aws.pages("cloudformation", "describe_stack_events", StackName=stack_id)
        async for page in pages:
            events = page["StackEvents"]
            own = [event for event in events if event.get("ClientRequestToken") == token]
            result += own
            # Newest first: an event of another operation is older than all of this one.
            if len(own) < len(events):
                break
        return result[::-1]

    async def _call(self, operation: str, **parameters: Any) -> AwsResponse:
        return await self.aws.call(
            "cloudformation", operation, **{"StackName": self.name, **parameters}
        )

    def _report_event(self, event: AwsResponse) -> None:
        status, reason = event["ResourceStatus"], event.get("ResourceStatusReason", "")
        if event["PhysicalResourceId"] == event["StackId"] or status.endswith(_IN_PROGRESS):
            return
        text = f"{status}: {reason}" if status.endswith("_FAILED") and reason else status
        self.report(f"  {event['LogicalResourceId']} ({event['ResourceType']})  {text}")
