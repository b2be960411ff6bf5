"""Scenarios of an operator, who deploys an installation, examines it and reads its secrets.

One more uses a heartbeat by itself.
"""

import asyncio
import io
import queue
import threading
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from botocore.session import get_session

from longshore.adapters.aws.client import AwsClient, AwsResponse, read_parameters
from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment
from longshore.adapters.aws.deploy.doctor import AwsDoctor
from longshore.adapters.aws.deploy.doctor_probe import Probe
from longshore.adapters.aws.deploy.package import FunctionPackage
from longshore.adapters.aws.deploy.stack_client import StackFailed
from longshore.adapters.aws.deploy.stacks.stage_config import AlarmsConfig, StageConfig
from longshore.adapters.aws.deploy.stacks.template import STACKS, stack_name
from longshore.adapters.system import SystemClock
from longshore.aws import HeartbeatLost, SQSHeartbeat
from longshore.core.inspection import Check, CheckStatus
from longshore.core.tasks.states import Priority
from longshore.errors import BackendError, BackendUnavailable
from tests.aws.call_tracing import calling_sites
from tests.aws.network_faults import FAILING_FAULTS, THROTTLING_CODES, NetworkFault
from tests.aws.scenario_harness import (
    CLIENT_ATTEMPTS,
    AwsFaultHarness,
    Scenario,
    ScenarioUnfinished,
)

T = TypeVar("T")

DISPATCHER_EVENTS = ("Task Completed",)
_ROLLBACK_FAILED = "UPDATE_ROLLBACK_FAILED"
_DEPLOYED = [name for name in STACKS if name not in ("worker", "server")]
_ATTEMPTS = 400  # each fault ends at most one of them, and repeated faults are many at each site


# Deploying ----------------------------------------------------------------------------------------


async def a_stage_that_is_deployed_inspected_and_destroyed(harness: AwsFaultHarness) -> None:
    stage = _RetriedDeployment(harness)
    await stage.deploy(protected=True)
    await stage.assert_deployed()
    await _check_doctor(harness, stage.config)
    with stage.rollback_failed("infrastructure"):
        await stage.deploy(protected=False)
    assert harness.aws.canned_counts["continue_update_rollback"] >= 1
    await stage.assert_deployed()
    await stage.leave_an_upload()
    await stage.destroy()
    await stage.assert_destroyed()


class _RetriedDeployment:
    """A stage of its own, whose deployment is retried until it succeeds."""

    def __init__(self, harness: AwsFaultHarness) -> None:
        self._harness = harness
        name = f"d{harness.name.rpartition('-')[2]}"
        self.config = StageConfig(
            stage=name,
            bucket=f"longshore-{name}-blobs",
            alarms=AlarmsConfig(enabled=False),  # the stand-in has none over several queues
        )
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as target:
            target.writestr("nothing.py", "")
        self._package = FunctionPackage(data=data.getvalue(), sha256="0" * 64)

    def _deployment(self, aws: AwsClient) -> CloudFormationDeployment:
        return CloudFormationDeployment(
            aws,
            self._harness.services.clock,
            self.config,
            dispatcher_events=DISPATCHER_EVENTS,
            stand_in=True,
            package=self._package,
        )

    async def deploy(self, *, protected: bool) -> None:
        self.config = replace(self.config, protected=protected)
        deployment = self._deployment(self._harness.aws)
        outputs = await self._retry(lambda: deployment.deploy(lambda _: None))
        assert outputs["Bucket"] == self.config.bucket

    async def destroy(self) -> None:
        deployment = self._deployment(self._harness.aws)
        await self._retry(lambda: deployment.destroy(lambda _: None, with_data=True))

    async def _retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Every failure raises the right error, and the next attempt continues from there."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._harness.advance_until_done(operation)
            except (BackendError, StackFailed):
                continue
        raise ScenarioUnfinished(self.config.stage)

    async def assert_deployed(self) -> None:
        """Check through a client without faults that nothing is half done."""
        deployment, calm = self._deployment(self._harness.reliable_aws), self._harness.reliable_aws
        states = {item.name: item for item in await deployment.status()}
        for name in _DEPLOYED:
            assert states[name].status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"), states[name]
            assert states[name].protected is self.config.protected, states[name]
        await calm.call("s3", "head_object", Bucket=self.config.bucket, Key=self._package.key)

    def rollback_failed(self, stack: str) -> "_RollbackFailed":
        return _RollbackFailed(self._harness, stack_name(self.config.stage, stack))

    async def leave_an_upload(self) -> None:
        """As a put leaves one that was cut off."""
        where = {"Bucket": self.config.bucket, "Key": "left"}
        await self._harness.reliable_aws.call("s3", "create_multipart_upload", **where)

    async def assert_destroyed(self) -> None:
        calm = self._harness.reliable_aws
        assert {item.status for item in await self._deployment(calm).status()} == {None}
        there = (await calm.call("dynamodb", "list_tables"))["TableNames"]
        assert not {*self.config.names.tables} & {*there}
        buckets = (await calm.call("s3", "list_buckets"))["Buckets"]
        assert self.config.bucket not in [item["Name"] for item in buckets]


class _RollbackFailed:
    """A stack that has stopped in the middle of going back; the stand-in has none such."""

    def __init__(self, harness: AwsFaultHarness, stack: str) -> None:
        self._aws = harness.aws
        self._stack = stack

    def __enter__(self) -> None:
        operation = "continue_update_rollback"
        name = "ContinueUpdateRollback"
        body = f"<{name}Response><{name}Result/></{name}Response>"
        self._aws.canned_responses[operation] = body.encode()

        def amend(called: str, answer: AwsResponse) -> None:
            if called == "describe_stacks" and not self._aws.canned_counts[operation]:
                for stack in answer["Stacks"]:
                    if stack["StackName"] == self._stack:
                        stack["StackStatus"] = _ROLLBACK_FAILED

        self._aws.amend_response = amend

    def __exit__(self, *_: object) -> None:
        self._aws.amend_response = lambda operation, answer: None


# Examining ----------------------------------------------------------------------------------------


async def _check_doctor(harness: AwsFaultHarness, config: StageConfig) -> None:
    """A call that failed is a finding, and there are no other new findings."""

    async def findings(aws: AwsClient) -> list[Check]:
        doctor = AwsDoctor(
            probe=Probe(aws, SystemClock()),
            names=config.names,
            queues=config.queues,
            dispatcher_events=DISPATCHER_EVENTS,
            skew_margin=timedelta(minutes=1),
        )
        checks = await harness.advance_until_done(doctor.diagnose)
        return [check for check in checks if check.status is not CheckStatus.OK]

    usual = await findings(harness.reliable_aws)
    before = dict(harness.aws.injected)
    result = await findings(harness.aws)
    met = {site for site in harness.aws.injected.keys() - before if site.where.startswith("doctor")}
    if any(harness.aws.injected[site] in FAILING_FAULTS for site in met):
        more = [check for check in result if check not in usual]
        assert more
        assert all(check.detail for check in more), more
    else:
        assert result == usual
    assert await findings(harness.reliable_aws) == usual


# Secrets ------------------------------------------------------------------------------------------


async def secrets_that_are_read(harness: AwsFaultHarness) -> None:
    """All secrets are returned, or an error that contains none of them."""
    stage, secret = harness.name, f"secret-of-{harness.name}"
    stored = {f"settings.number{n}": f"{secret}-{n}" for n in range(12)}  # two pages
    for name, value in stored.items():
        await harness.reliable_aws.call(
            "ssm",
            "put_parameter",
            Name=f"/longshore/{stage}/{name}",
            Value=value,
            Type="SecureString",
        )
    errors: list[str] = []
    for _ in range(CLIENT_ATTEMPTS):
        try:
            result = await harness.advance_until_done(lambda: read_parameters(harness.aws, stage))
        except BackendUnavailable as error:
            errors.append(f"{error!r} {error} {error.__cause__!r}")
        else:
            assert result == stored
            assert not [text for text in errors if secret in text]
            return
    raise ScenarioUnfinished(stage)


# A heartbeat --------------------------------------------------------------------------------------


async def a_heartbeat_by_itself(harness: AwsFaultHarness) -> None:
    """It keeps beating, or reports exactly once that it has stopped."""
    name = harness.names.queue("default", Priority.HIGH)
    url = (await harness.reliable_aws.call("sqs", "get_queue_url", QueueName=name))["QueueUrl"]
    await harness.reliable_aws.call("sqs", "send_message", QueueUrl=url, MessageBody=harness.name)
    answer = await harness.reliable_aws.call(
        "sqs", "receive_message", QueueUrl=url, MaxNumberOfMessages=1, VisibilityTimeout=600
    )
    handle = answer["Messages"][0]["ReceiptHandle"]
    client = _FaultyBotoClient(harness)
    lost: list[HeartbeatLost] = []
    beat = SQSHeartbeat(url, handle, 0.005, client=client, on_lost=lost.append)
    beat.start()
    await asyncio.to_thread(client.wait_for_calls, lambda: bool(lost))
    beat.stop()
    calls = client.count
    failed = [item for item in client.injected if item in FAILING_FAULTS]
    assert [item.reason for item in lost] == [_REASONS[item] for item in failed[:1]]
    assert beat.check_for_errors() is (lost[0] if lost else None)
    assert handle not in f"{lost!r} {lost} {beat!r}"
    assert not beat.running
    assert client.count == calls
    await harness.reliable_aws.call("sqs", "delete_message", QueueUrl=url, ReceiptHandle=handle)


_REASONS = {
    NetworkFault.THROTTLED: THROTTLING_CODES["sqs"],
    NetworkFault.ERROR_BEFORE: "InternalServerError",
    NetworkFault.ERROR_AFTER: "InternalServerError",
    NetworkFault.TIMED_OUT: "ReadTimeoutError",
    NetworkFault.RESET: "ConnectionClosedError",
}


class _FaultyBotoClient:
    """A client of botocore, as an application would create it."""

    ENOUGH = 6

    def __init__(self, harness: AwsFaultHarness) -> None:
        self._aws = harness.aws
        options = harness.reliable_aws._options
        key, secret = options.credentials or ("", "")
        self._client = get_session().create_client(
            "sqs",
            region_name=options.region,
            endpoint_url=options.endpoint_url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )
        session = self._client._endpoint.http_session
        self._send = session.send
        session.send = self._inject
        self._call: tuple[Any, int] = (None, 0)
        self._beats: queue.Queue[None] = queue.Queue()
        self.injected: list[NetworkFault] = []
        self.count = 0

    def change_message_visibility(self, **parameters: Any) -> None:
        self.count += 1
        self._call = self._aws.record_call(calling_sites(), "sqs", "change_message_visibility")
        try:
            self._client.change_message_visibility(**parameters)
        finally:
            self._beats.put(None)

    def wait_for_calls(self, ended: Callable[[], bool]) -> None:
        for _ in range(self.ENOUGH):
            while not ended():
                try:
                    self._beats.get(timeout=0.05)
                except queue.Empty:
                    continue
                break

    def _inject(self, request: Any) -> Any:
        site, number = self._call
        fault = self._aws.fault_for(site, number)
        if fault is None:
            return self._send(request)
        self.injected += [fault] if fault not in self.injected else []
        match fault:
            case NetworkFault.RESET:
                raise ConnectionClosedError(endpoint_url=request.url)
            case NetworkFault.THROTTLED | NetworkFault.ERROR_BEFORE:
                return _error_response(request, fault)
            case NetworkFault.SLOW:
                threading.Event().wait(0.05)  # many times as long as between two beats
                return self._send(request)
        self._send(request)
        if fault is NetworkFault.TIMED_OUT:
            raise ReadTimeoutError(endpoint_url=request.url)
        return _error_response(request, fault)


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> list[bytes]:
        return [self._data]


def _error_response(request: Any, fault: NetworkFault) -> AWSResponse:
    throttled = fault is NetworkFault.THROTTLED
    code = THROTTLING_CODES["sqs"] if throttled else "InternalServerError"
    body = f'{{"__type":"{code}","message":""}}'.encode()
    return AWSResponse(request.url, 400 if throttled else 500, {}, _Body(body))


DEPLOY_SCENARIOS: Sequence[Scenario] = (
    a_stage_that_is_deployed_inspected_and_destroyed,
    secrets_that_are_read,
    a_heartbeat_by_itself,
)
