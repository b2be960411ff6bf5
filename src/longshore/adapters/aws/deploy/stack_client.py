"""One stack on CloudFormation: changed by change sets, followed by its events, mended first.

An operation of CloudFormation goes on by itself when whoever began it has gone. So whatever is
found under way is waited for, and whatever an earlier try has left half done is cleared before the
next begins.
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
# Nothing of these can be updated; they are taken away and made anew.
_UNUSABLE: Final = {"CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED"}
_ROLLBACK_FAILED: Final = "UPDATE_ROLLBACK_FAILED"
_SUCCEEDED: Final = {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}
_NO_CHANGES: Final = ("didn't contain changes", "No updates are to be performed")
_CANCELLED: Final = "cancelled"


class StackFailed(LongshoreError):
    """A stack did not become what it was to be; the reason is the first that was told."""

    def __init__(self, stack: str, resource: str, reason: str) -> None:
        self.stack = stack
        self.resource = resource
        self.reason = reason
        super().__init__(stack, resource, reason)

    def __str__(self) -> str:
        where = f"{self.stack}: {self.resource}" if self.resource else self.stack
        return f"{where}: {self.reason}"


class StackProtected(Conflict):
    """A stack that must not be deleted."""

    def __init__(self, stack: str, advice: str) -> None:
        self.stack = stack
        self.advice = advice
        super().__init__(stack, advice)

    def __str__(self) -> str:
        return f"{self.stack} is protected against being deleted; {self.advice}"


class CloudFormationStacks:
    """The stacks of an account and region."""

    def __init__(self, aws: AwsClient, clock: Clock, *, poll_interval: timedelta) -> None:
        self._aws = aws
        self._clock = clock
        self._poll_interval = poll_interval

    async def describe(self, name: str) -> AwsResponse | None:
        """A stack as CloudFormation describes it, by its name or its id."""
        try:
            found = await self._call("describe_stacks", expects=_NO_STACK, StackName=name)
        except CallRefused:
            return None
        stack: AwsResponse = found["Stacks"][0]
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
        """Make the stack what the template says; whether anything had to be changed.

        Raises:
            StackFailed: it could not be; it is as before.
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
            # Tables and the bucket, if they were kept when the stage was taken down before.
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
        found = await self.describe(name)
        status = await self._follow(found["StackId"] if found else name, token, report, short_name)
        if status not in _SUCCEEDED:
            raise StackFailed(name, *await self._first_reason(name, token, status))
        return True

    async def protect(self, name: str, *, on: bool) -> None:
        """Let nobody delete it, or let them."""
        await self._call(
            "update_termination_protection",
            alters=True,
            StackName=name,
            EnableTerminationProtection=on,
        )

    async def delete(self, name: str, report: ReportProgress, short_name: str) -> bool:
        """Delete the stack, if it is there.

        Raises:
            StackFailed: something in it could not be deleted.
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
        """The stack when nothing is under way in it; None if it has to be made."""
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
                    text="puts back what an update has left",
                )
            )
            await self._call("continue_update_rollback", alters=True, StackName=name)
            status = await self._follow(stack["StackId"], None, report, short_name)
        if status in _UNUSABLE:
            await self.delete(name, report, short_name)
            return None
        return None if status == "DELETE_COMPLETE" else stack

    async def _delete_change_set(self, name: str) -> None:
        """One that an earlier try has left, or that says that nothing is to be changed."""
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
            found = await self._call(
                "describe_change_set", StackName=name, ChangeSetName=_CHANGE_SET
            )
            if found["Status"] == "CREATE_COMPLETE":
                return True
            if found["Status"] == "FAILED":
                reason = found.get("StatusReason", "")
                if any(words in reason for words in _NO_CHANGES):
                    return False
                await self._delete_change_set(name)
                raise StackFailed(name, "", reason)
            await self._clock.sleep(self._poll_interval)

    async def _follow(
        self, stack: str, token: str | None, report: ReportProgress, short_name: str
    ) -> str:
        """Tell what happens until nothing does; the status then.

        Args:
            token: Of the operation whose events are told; None: tell none, it was another's.
        """
        told: set[str] = set()
        while True:
            found = await self.describe(stack)
            # Before the events: what happened up to the end is told.
            status = str(found["StackStatus"]) if found else "DELETE_COMPLETE"
            if token is not None:
                for event in await self._events(stack, token):
                    if event["EventId"] not in told:
                        told.add(event["EventId"])
                        _report_event(event, report, short_name)
            if not status.endswith(_IN_PROGRESS):
                return status
            await self._clock.sleep(self._poll_interval)

    async def _events(self, stack: str, token: str) -> list[AwsResponse]:
        """Those of one operation, in order."""
        found: list[AwsResponse] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._call("describe_stack_events", StackName=stack, **more)
            events = page["StackEvents"]
            own = [event for event in events if event.get("ClientRequestToken") == token]
            found += own
            # The newest come first: behind one of another operation there are none of this.
            if len(own) < len(events) or not (following := page.get("NextToken")):
                return found[::-1]
            more = {"NextToken": following}

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
