"""Stacks on CloudFormation: changed by change sets, with progress from their events.

An operation of CloudFormation continues when its caller has died. So an operation in progress is
awaited, and what an earlier one left unfinished is repaired before the next one starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.core.inspection import DeployProgress, DeployProgressKind, ReportProgress
from longshore.errors import Conflict, LongshoreError
from longshore.ports.clock import Clock

_CHANGE_SET: Final = "longshore-deploy"
_NO_STACK: Final = ("ValidationError",)
_NO_CHANGE_SET: Final = ("ChangeSetNotFound", "ChangeSetNotFoundException", *_NO_STACK)
_IN_PROGRESS: Final = "_IN_PROGRESS"
_REVIEW_IN_PROGRESS: Final = "REVIEW_IN_PROGRESS"
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


class StackProtected(Conflict):
    """A stack has termination protection."""

    def __init__(self, stack: str, advice: str) -> None:
        self.stack = stack
        self.advice = advice
        super().__init__(stack, advice)

    def __str__(self) -> str:
        return f"{self.stack} is protected against deletion; {self.advice}"


class CloudFormationStacks:
    """The stacks of an account and region."""

    def __init__(self, aws: AwsClient, clock: Clock, *, poll_interval: timedelta) -> None:
        self._aws = aws
        self._clock = clock
        self._poll_interval = poll_interval

    async def describe(self, name: str) -> AwsResponse | None:
        """A stack as CloudFormation describes it, by its name or its id."""
        try:
            answer = await self._call("describe_stacks", expects=_NO_STACK, StackName=name)
        except CallRefused:
            return None
        stack: AwsResponse = answer["Stacks"][0]
        return (
            None
            if stack["StackStatus"] == "DELETE_COMPLETE" and name != stack["StackId"]
            else stack
        )

    async def apply(
        self,
        name: str,
        template: str,
        parameters: Mapping[str, str],
        report: ReportProgress,
        short_name: str,
    ) -> bool:
        """Create or update the stack. Returns True if anything changed.

        Raises:
            StackFailed: the change failed and was rolled back.
        """
        stack = await self._wait_until_settled(name, report, short_name)
        kind = "UPDATE" if stack else "CREATE"
        await self._delete_change_set(name)
        await self._call(
            "create_change_set",
            alters=True,
            StackName=name,
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
        if not await self._has_changes(name):
            await self._delete_change_set(name)
            return False
        token = f"deploy-{uuid.uuid4()}"
        report(DeployProgress(stack=short_name, kind=DeployProgressKind.STARTED, text=kind.lower()))
        await self._call(
            "execute_change_set",
            alters=True,
            StackName=name,
            ChangeSetName=_CHANGE_SET,
            ClientRequestToken=token,
        )
        stack = await self.describe(name)
        status = await self._follow(stack["StackId"] if stack else name, token, report, short_name)
        if status not in _SUCCEEDED:
            raise StackFailed(name, *await self._first_reason(name, token, status))
        return True

    async def protect(self, name: str, *, on: bool) -> None:
        """Set or remove the termination protection."""
        await self._call(
            "update_termination_protection",
            alters=True,
            StackName=name,
            EnableTerminationProtection=on,
        )

    async def delete(self, name: str, report: ReportProgress, short_name: str) -> bool:
        """Delete the stack. Returns False if there is none.

        Raises:
            StackFailed: a resource could not be deleted.
        """
        stack = await self.describe(name)
        if stack is None:
            return False
        if (
            stack["StackStatus"].endswith(_IN_PROGRESS)
            and stack["StackStatus"] != _REVIEW_IN_PROGRESS
        ):
            report(
                DeployProgress(
                    stack=short_name, kind=DeployProgressKind.WAITING, text=stack["StackStatus"]
                )
            )
            await self._follow(stack["StackId"], None, report, short_name)
        token = f"destroy-{uuid.uuid4()}"
        report(DeployProgress(stack=short_name, kind=DeployProgressKind.STARTED, text="delete"))
        await self._call("delete_stack", alters=True, StackName=name, ClientRequestToken=token)
        status = await self._follow(stack["StackId"], token, report, short_name)
        if status != "DELETE_COMPLETE":
            reason = await self._first_reason(stack["StackId"], token, status)
            raise StackFailed(name, *reason)
        return True

    async def _wait_until_settled(
        self, name: str, report: ReportProgress, short_name: str
    ) -> AwsResponse | None:
        """The stack after the operation in progress; None if it must be created."""
        stack = await self.describe(name)
        if stack is None or stack["StackStatus"] == _REVIEW_IN_PROGRESS:
            return None
        status = stack["StackStatus"]
        if status.endswith(_IN_PROGRESS):
            report(DeployProgress(stack=short_name, kind=DeployProgressKind.WAITING, text=status))
            status = await self._follow(stack["StackId"], None, report, short_name)
        if status == _ROLLBACK_FAILED:
            report(
                DeployProgress(
                    stack=short_name,
                    kind=DeployProgressKind.WAITING,
                    text="continues the rollback of an update",
                )
            )
            await self._call("continue_update_rollback", alters=True, StackName=name)
            status = await self._follow(stack["StackId"], None, report, short_name)
        if status in _UNUSABLE:
            await self.delete(name, report, short_name)
            return None
        return None if status == "DELETE_COMPLETE" else stack

    async def _delete_change_set(self, name: str) -> None:
        """Delete a change set that an earlier call left, or that has no changes."""
        try:
            await self._call(
                "delete_change_set",
                alters=True,
                expects=_NO_CHANGE_SET,
                StackName=name,
                ChangeSetName=_CHANGE_SET,
            )
        except CallRefused:
            return

    async def _has_changes(self, name: str) -> bool:
        while True:
            change_set = await self._call(
                "describe_change_set", StackName=name, ChangeSetName=_CHANGE_SET
            )
            if change_set["Status"] == "CREATE_COMPLETE":
                return True
            if change_set["Status"] == "FAILED":
                reason = change_set.get("StatusReason", "")
                if any(text in reason for text in _NO_CHANGES):
                    return False
                await self._delete_change_set(name)
                raise StackFailed(name, "", reason)
            await self._clock.sleep(self._poll_interval)

    async def _follow(
        self, stack: str, token: str | None, report: ReportProgress, short_name: str
    ) -> str:
        """Wait for the end of an operation and report its events. Returns the final status.

        Args:
            token: Of the operation; None: it is not ours, and its events are not reported.
        """
        reported: set[str] = set()
        while True:
            description = await self.describe(stack)
            # Read before the events, so that the last events are reported too.
            status = str(description["StackStatus"]) if description else "DELETE_COMPLETE"
            if token is not None:
                for event in await self._events(stack, token):
                    if event["EventId"] not in reported:
                        reported.add(event["EventId"])
                        _report_event(event, report, short_name)
            if not status.endswith(_IN_PROGRESS):
                return status
            await self._clock.sleep(self._poll_interval)

    async def _events(self, stack: str, token: str) -> list[AwsResponse]:
        """The events of one operation, in order."""
        result: list[AwsResponse] = []
        token_parameter: dict[str, Any] = {}
        while True:
            page = await self._call("describe_stack_events", StackName=stack, **token_parameter)
            events = page["StackEvents"]
            own = [event for event in events if event.get("ClientRequestToken") == token]
            result += own
            # Newest first: an event of another operation is older than all of this one.
            if len(own) < len(events) or not (following := page.get("NextToken")):
                return result[::-1]
            token_parameter = {"NextToken": following}

    async def _first_reason(self, stack: str, token: str, status: str) -> tuple[str, str]:
        for event in await self._events(stack, token):
            reason = event.get("ResourceStatusReason", "")
            if event["ResourceStatus"].endswith("_FAILED") and _CANCELLED not in reason:
                return event["LogicalResourceId"], reason or event["ResourceStatus"]
        return "", f"it ended as {status}"

    async def _call(self, operation: str, **parameters: Any) -> AwsResponse:
        return await self._aws.call("cloudformation", operation, **parameters)


def _report_event(event: AwsResponse, report: ReportProgress, short_name: str) -> None:
    status, reason = event["ResourceStatus"], event.get("ResourceStatusReason", "")
    if event["PhysicalResourceId"] == event["StackId"]:
        return
    failed = status.endswith("_FAILED")
    report(
        DeployProgress(
            stack=short_name,
            kind=DeployProgressKind.RESOURCE,
            resource=f"{event['LogicalResourceId']} ({event['ResourceType']})",
            text=f"{status}: {reason}" if failed and reason else status,
            failed=failed,
        )
    )
