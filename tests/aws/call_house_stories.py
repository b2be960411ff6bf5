"""Stories of whoever looks after an installation: deploys it, examines it, reads its secrets.

And of a heartbeat that is used by itself.
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

from longshore.adapters.aws.calls import Answer, Aws
from longshore.adapters.aws.deploying import CloudFormationDeployment
from longshore.adapters.aws.deploying_package import Package
from longshore.adapters.aws.deploying_stack import StackFailed
from longshore.adapters.aws.examining import Wanted, examine
from longshore.adapters.aws.parameters import parameters_of
from longshore.adapters.aws.shapes import table_shapes
from longshore.adapters.aws.stacks import STACKS, stack_name
from longshore.adapters.aws.stacks.config import AlarmsConfig, StageConfig
from longshore.adapters.system.clock import SystemClock
from longshore.aws import HeartbeatLost, SQSHeartbeat
from longshore.core.states import Priority
from longshore.errors import BackendError, BackendUnavailable
from longshore.ports.inspection import Check, Mark
from tests.aws.call_theatre import CLIENT_TRIES, Story, Theatre, Unfinished
from tests.aws.call_tracing import caller
from tests.aws.wire_trouble import FAILING, THROTTLED, Trouble

T = TypeVar("T")

WAKES = ("Task Completed",)
_STUCK = "UPDATE_ROLLBACK_FAILED"
_DEPLOYED = [name for name in STACKS if name not in ("worker", "server")]
_TRIES = 400  # each trouble ends one of them at most, and a storm is many at each site


# Deploying ----------------------------------------------------------------------------------------


async def a_stage_that_is_deployed_examined_and_taken_away(told: Theatre) -> None:
    stage = _Stage(told)
    await stage.deploy(protected=True)
    await stage.is_as_deployed()
    await _examined(told, stage.config)
    with stage.stuck("infrastructure"):
        await stage.deploy(protected=False)
    assert told.aws.stood_for["continue_update_rollback"] >= 1
    await stage.is_as_deployed()
    await stage.leave_an_upload()
    await stage.destroy()
    await stage.is_away()


class _Stage:
    """A stage of its own, deployed by somebody who tries again until it is as it should be."""

    def __init__(self, told: Theatre) -> None:
        self._told = told
        name = f"d{told.name.rpartition('-')[2]}"
        self.config = StageConfig(
            stage=name,
            bucket=f"longshore-{name}-blobs",
            alarms=AlarmsConfig(enabled=False),  # the stand-in has none over several queues
        )
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as target:
            target.writestr("nothing.py", "")
        self._package = Package(data=data.getvalue(), sha256="0" * 64)

    def _deployment(self, aws: Aws) -> CloudFormationDeployment:
        return CloudFormationDeployment(
            aws,
            self._told.stage.clock,
            self.config,
            wakes=WAKES,
            stand_in=True,
            package=self._package,
        )

    async def deploy(self, *, protected: bool) -> None:
        self.config = replace(self.config, protected=protected)
        deployment = self._deployment(self._told.aws)
        outputs = await self._until_done(lambda: deployment.deploy(lambda _: None))
        assert outputs["Bucket"] == self.config.bucket

    async def destroy(self) -> None:
        deployment = self._deployment(self._told.aws)
        await self._until_done(lambda: deployment.destroy(lambda _: None, with_data=True))

    async def _until_done(self, deed: Callable[[], Awaitable[T]]) -> T:
        """Whatever goes wrong is told as what it is, and the next try goes on from there."""
        for _ in range(_TRIES):
            try:
                return await self._told.in_time(deed)
            except (BackendError, StackFailed):
                continue
        raise Unfinished(self.config.stage)

    async def is_as_deployed(self) -> None:
        """Asked by somebody who meets no trouble: nothing is half done."""
        deployment, calm = self._deployment(self._told.calm), self._told.calm
        states = {one.name: one for one in await deployment.status()}
        for name in _DEPLOYED:
            assert states[name].status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"), states[name]
            assert states[name].protected is self.config.protected, states[name]
        await calm.call("s3", "head_object", Bucket=self.config.bucket, Key=self._package.key)

    def stuck(self, stack: str) -> "_Stuck":
        return _Stuck(self._told, stack_name(self.config.stage, stack))

    async def leave_an_upload(self) -> None:
        """As a put leaves one that was cut off."""
        where = {"Bucket": self.config.bucket, "Key": "left"}
        await self._told.calm.call("s3", "create_multipart_upload", **where)

    async def is_away(self) -> None:
        calm = self._told.calm
        assert {one.status for one in await self._deployment(calm).status()} == {None}
        there = (await calm.call("dynamodb", "list_tables"))["TableNames"]
        assert not {one["TableName"] for one in table_shapes(self.config.names)} & {*there}
        buckets = (await calm.call("s3", "list_buckets"))["Buckets"]
        assert self.config.bucket not in [one["Name"] for one in buckets]


class _Stuck:
    """A stack that has stopped in the middle of going back; the stand-in has none such."""

    def __init__(self, told: Theatre, stack: str) -> None:
        self._aws = told.aws
        self._stack = stack

    def __enter__(self) -> None:
        operation = "continue_update_rollback"
        name = "ContinueUpdateRollback"
        body = f"<{name}Response><{name}Result/></{name}Response>"
        self._aws.stands_for[operation] = body.encode()

        def amend(asked: str, answer: Answer) -> None:
            if asked == "describe_stacks" and not self._aws.stood_for[operation]:
                for stack in answer["Stacks"]:
                    if stack["StackName"] == self._stack:
                        stack["StackStatus"] = _STUCK

        self._aws.amend = amend

    def __exit__(self, *_: object) -> None:
        self._aws.amend = lambda operation, answer: None


# Examining ----------------------------------------------------------------------------------------


async def _examined(told: Theatre, config: StageConfig) -> None:
    """What could not be asked is a finding, and nothing else is said of it."""
    wanted = Wanted(
        names=config.names,
        queues=config.queues,
        wakes=WAKES,
        skew_margin=timedelta(minutes=1),
    )

    async def findings(aws: Aws) -> list[Check]:
        checks = await told.in_time(lambda: examine(aws, wanted, SystemClock()))
        return [check for check in checks if check.mark is not Mark.OK]

    usual = await findings(told.calm)
    before = dict(told.aws.met)
    found = await findings(told.aws)
    met = {site for site in told.aws.met.keys() - before if site.where.startswith("examining")}
    if any(told.aws.met[site] in FAILING for site in met):
        more = [check for check in found if check not in usual]
        assert more
        assert all(check.detail for check in more), more
    else:
        assert found == usual
    assert await findings(told.calm) == usual


# Secrets ------------------------------------------------------------------------------------------


async def secrets_that_are_read(told: Theatre) -> None:
    """All of them or an error, in which there is none."""
    stage, secret = told.name, f"secret-of-{told.name}"
    kept = {f"settings.number{n}": f"{secret}-{n}" for n in range(12)}  # two pages
    for name, value in kept.items():
        await told.calm.call(
            "ssm",
            "put_parameter",
            Name=f"/longshore/{stage}/{name}",
            Value=value,
            Type="SecureString",
        )
    said: list[str] = []
    for _ in range(CLIENT_TRIES):
        try:
            found = await told.in_time(lambda: parameters_of(told.aws, stage))
        except BackendUnavailable as error:
            said.append(f"{error!r} {error} {error.__cause__!r}")
        else:
            assert found == kept
            assert not [text for text in said if secret in text]
            return
    raise Unfinished(stage)


# A heartbeat --------------------------------------------------------------------------------------


async def a_heartbeat_by_itself(told: Theatre) -> None:
    """It beats on, or says once and for all that it does not."""
    name = told.names.queue("default", Priority.HIGH)
    url = (await told.calm.call("sqs", "get_queue_url", QueueName=name))["QueueUrl"]
    await told.calm.call("sqs", "send_message", QueueUrl=url, MessageBody=told.name)
    answer = await told.calm.call(
        "sqs", "receive_message", QueueUrl=url, MaxNumberOfMessages=1, VisibilityTimeout=600
    )
    handle = answer["Messages"][0]["ReceiptHandle"]
    client = _Client(told)
    lost: list[HeartbeatLost] = []
    beat = SQSHeartbeat(url, handle, 0.005, client=client, on_lost=lost.append)
    beat.start()
    await asyncio.to_thread(client.until_enough, lambda: bool(lost))
    beat.stop()
    calls = client.count
    failed = [one for one in client.met if one in FAILING]
    assert [one.reason for one in lost] == [_REASONS[one] for one in failed[:1]]
    assert beat.check_for_errors() is (lost[0] if lost else None)
    assert handle not in f"{lost!r} {lost} {beat!r}"
    assert not beat.running
    assert client.count == calls
    await told.calm.call("sqs", "delete_message", QueueUrl=url, ReceiptHandle=handle)


_REASONS = {
    Trouble.THROTTLED: THROTTLED["sqs"],
    Trouble.BROKEN_BEFORE: "InternalServerError",
    Trouble.BROKEN_AFTER: "InternalServerError",
    Trouble.TIMED_OUT: "ReadTimeoutError",
    Trouble.RESET: "ConnectionClosedError",
}


class _Client:
    """A client of botocore, as somebody else would have it."""

    ENOUGH = 6

    def __init__(self, told: Theatre) -> None:
        self._aws = told.aws
        place = told.calm._place
        key, secret = place.credentials or ("", "")
        self._client = get_session().create_client(
            "sqs",
            region_name=place.region,
            endpoint_url=place.endpoint_url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )
        session = self._client._endpoint.http_session
        self._send = session.send
        session.send = self._troubled
        self._call: tuple[Any, int] = (None, 0)
        self._beats: queue.Queue[None] = queue.Queue()
        self.met: list[Trouble] = []
        self.count = 0

    def change_message_visibility(self, **given: Any) -> None:
        self.count += 1
        self._call = self._aws.note(caller(), "sqs", "change_message_visibility")
        try:
            self._client.change_message_visibility(**given)
        finally:
            self._beats.put(None)

    def until_enough(self, ended: Callable[[], bool]) -> None:
        for _ in range(self.ENOUGH):
            while not ended():
                try:
                    self._beats.get(timeout=0.05)
                except queue.Empty:
                    continue
                break

    def _troubled(self, request: Any) -> Any:
        site, number = self._call
        trouble = self._aws.planned(site, number)
        if trouble is None:
            return self._send(request)
        self.met += [trouble] if trouble not in self.met else []
        match trouble:
            case Trouble.RESET:
                raise ConnectionClosedError(endpoint_url=request.url)
            case Trouble.THROTTLED | Trouble.BROKEN_BEFORE:
                return _refusal(request, trouble)
            case Trouble.SLOW:
                threading.Event().wait(0.05)  # many times as long as between two beats
                return self._send(request)
        self._send(request)
        if trouble is Trouble.TIMED_OUT:
            raise ReadTimeoutError(endpoint_url=request.url)
        return _refusal(request, trouble)


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> list[bytes]:
        return [self._data]


def _refusal(request: Any, trouble: Trouble) -> AWSResponse:
    throttled = trouble is Trouble.THROTTLED
    code = THROTTLED["sqs"] if throttled else "InternalServerError"
    body = f'{{"__type":"{code}","message":""}}'.encode()
    return AWSResponse(request.url, 400 if throttled else 500, {}, _Body(body))


HOUSE_STORIES: Sequence[Story] = (
    a_stage_that_is_deployed_examined_and_taken_away,
    secrets_that_are_read,
    a_heartbeat_by_itself,
)
