"""``longshore doctor`` on AWS: installations as deployed, and changed ones."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.deploy.doctor import _check_clock as clock_of
from longshore.adapters.aws.deploy.doctor_probe import PROBE_TIMEOUT_S, ProbeResult, identity_check
from longshore.adapters.aws.deploy.stacks.stage_config import AlarmsConfig, StageConfig
from longshore.adapters.aws.deploy.stacks.template import CONSUMERS, templates
from longshore.adapters.aws.names import Names
from longshore.core.inspection import Check, CheckStatus
from longshore.core.tasks.states import Priority
from longshore.services.dispatcher import ENDING_EVENTS
from tests.aws.stand_in import REGION, stand_in
from tests.interfaces.command_line import CommandResult
from tests.interfaces.conftest import inside as inside

InstallationCall = Callable[..., CommandResult]
QUEUES = ("default", "night-shift")
_ACCOUNT = "000000000000"


def checks_by_name(output: CommandResult) -> dict[str, list[dict[str, Any]]]:
    """The findings by name."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for check in output.json["checks"]:
        checks.setdefault(check["name"], []).append(check)
    return checks


class DoctorInstallation:
    """A stage on the stand-in as the templates have it, and ways to break it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._aws = AwsClient(stand_in().client_options)
        self.stage = stand_in().new_stage()
        self.names = Names(stage=self.stage, bucket=f"longshore-{self.stage}-blobs")
        self.config = StageConfig(
            stage=self.stage,
            queues=QUEUES,
            bucket=self.names.bucket,
            protected=False,
            alarms=AlarmsConfig(enabled=False),  # the stand-in has none over several queues
        )

    def call(self, service: str, operation: str, **parameters: Any) -> Any:
        return self._runner.run(self._aws.call(service, operation, **parameters))

    def close(self) -> None:
        self._runner.run(self._aws.close())
        self._runner.close()

    def url(self, name: str) -> str:
        return str(self.call("sqs", "get_queue_url", QueueName=name)["QueueUrl"])

    def arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{REGION}:{_ACCOUNT}:{queue}"

    def deploy(self) -> None:
        """What outlives functions: by the template, and the rules by hand."""
        stacks = templates(self.config, dispatcher_events=tuple(ENDING_EVENTS))
        stack = f"longshore-{self.stage}-infrastructure"
        body = json.dumps(stacks["infrastructure"])
        self.call("cloudformation", "create_stack", StackName=stack, TemplateBody=body)
        while True:
            answer = self.call("cloudformation", "describe_stacks", StackName=stack)
            if not answer["Stacks"][0]["StackStatus"].endswith("IN_PROGRESS"):
                break
        if answer["Stacks"][0]["StackStatus"] != "CREATE_COMPLETE":
            events = self.call("cloudformation", "describe_stack_events", StackName=stack)
            pytest.fail(str([entry.get("ResourceStatusReason") for entry in events["StackEvents"]]))
        for table in (self.names.events, self.names.ledger):
            # The stand-in passes over what a template says of it.
            expiry = {"AttributeName": "ttl", "Enabled": True}
            self.call(
                "dynamodb",
                "update_time_to_live",
                TableName=table,
                TimeToLiveSpecification=expiry,
            )
        patterns = {
            item["Properties"]["Name"]: item["Properties"]["EventPattern"]
            for template in stacks.values()
            for item in template["Resources"].values()
            if item["Type"] == "AWS::Events::Rule" and "EventPattern" in item["Properties"]
        }
        for consumer in CONSUMERS:
            name = self.names.consumer(consumer)
            self.rule(name, patterns[name])
        sweeper = f"longshore-{self.stage}-sweeper"
        self.call("events", "put_rule", Name=sweeper, ScheduleExpression="rate(1 minute)")

    def rule(self, name: str, pattern: Any) -> None:
        self.call(
            "events",
            "put_rule",
            Name=name,
            EventBusName=self.names.bus,
            EventPattern=json.dumps(pattern),
        )
        target = {
            "Id": "queue",
            "Arn": self.arn(name),
            "DeadLetterConfig": {"Arn": self.arn(self.names.consumer("undelivered"))},
        }
        self.call(
            "events",
            "put_targets",
            Rule=name,
            EventBusName=self.names.bus,
            Targets=[target],
        )


@pytest.fixture
def stage_installation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DoctorInstallation]:
    installation = DoctorInstallation()
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": REGION,
        "LONGSHORE_BACKEND": "aws",
        "LONGSHORE_ENVIRONMENT": installation.stage,
        "LONGSHORE_AWS_ENDPOINT_URL": stand_in().endpoint,
        "LONGSHORE_AWS_BUCKET": installation.names.bucket,
        "LONGSHORE_WORKER_QUEUES": ",".join(QUEUES),
        "ANTHROPIC_API_KEY": "sk-ant-of-a-test",
    }.items():
        monkeypatch.setenv(name, value)
    yield installation
    installation.close()


def test_a_deployed_installation_is_sound_until_something_is_changed(
    stage_installation: DoctorInstallation, inside: InstallationCall
) -> None:
    names = stage_installation.names
    stage_installation.deploy()

    sound = inside("doctor", "-o", "json")

    assert [c for c in sound.json["checks"] if c["status"] != "ok"] == []
    assert (sound.code, sound.json["ok"]) == (0, True)
    checks = checks_by_name(sound)
    assert f"account {_ACCOUNT}" in checks["identity"][0]["detail"]
    assert stand_in().endpoint in checks["reach dynamodb"][0]["detail"]
    assert {f"queue {name}" for name in QUEUES} <= set(checks)
    assert {"clock", "limits", "reach sqs", "reach s3", "reach events"} <= set(checks)

    # Now nearly everything is changed by hand.
    lane, dead = (name("default", Priority.HIGH) for name in (names.queue, names.dead_letter_queue))
    stage_installation.call(
        "sqs",
        "delete_queue",
        QueueUrl=stage_installation.url(names.dead_letter_queue("night-shift", Priority.LOW)),
    )
    policy = json.dumps({"deadLetterTargetArn": stage_installation.arn(dead), "maxReceiveCount": 3})
    changed = {"VisibilityTimeout": "30", "RedrivePolicy": policy}
    stage_installation.call(
        "sqs", "set_queue_attributes", QueueUrl=stage_installation.url(lane), Attributes=changed
    )
    stage_installation.call(
        "sqs", "send_message", QueueUrl=stage_installation.url(dead), MessageBody="poison"
    )
    undelivered = stage_installation.url(names.consumer("undelivered"))
    stage_installation.call("sqs", "send_message", QueueUrl=undelivered, MessageBody="event")
    stage_installation.rule(names.consumer("history"), {"detail-type": ["other"]})
    rule = {"Name": names.consumer("dispatcher"), "EventBusName": names.bus}
    stage_installation.call("events", "disable_rule", **rule)
    stage_installation.call("s3", "delete_public_access_block", Bucket=names.bucket)
    stage_installation.call("dynamodb", "delete_table", TableName=names.config)
    stage_installation.call(
        "dynamodb",
        "update_table",
        TableName=names.events,
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "GSI7-index"}}],
    )
    off = {"StreamEnabled": False}
    stage_installation.call(
        "dynamodb", "update_table", TableName=names.ledger, StreamSpecification=off
    )

    broken = inside("doctor", "-o", "json")

    checks = {
        name: [(entry["status"], entry["detail"], entry["expected"]) for entry in some]
        for name, some in checks_by_name(broken).items()
    }
    assert (broken.code, broken.json["ok"]) == (1, False)
    gone = f"queue {names.dead_letter_queue('night-shift', Priority.LOW)}"
    assert checks[gone] == [("fail", "it does not exist", "a queue")]
    assert checks[f"queue {lane}"] == [
        ("warn", "visibility timeout is 30 s", "900 s"),
        ("fail", f"dead-letter queue is {dead} after 3 receives", f"{dead} after 20 receives"),
    ]
    assert checks["queue default"] == [("warn", "0 ready, 0 in flight or delayed, 1 dead", None)]
    assert checks["undelivered events"] == [("warn", "1 could not be delivered", None)]
    (pattern,) = checks[f"rule {names.consumer('history')}"]
    assert pattern[:2] == ("fail", 'pattern is {"detail-type": ["other"]}')
    (switched_off,) = checks[f"rule {names.consumer('dispatcher')}"]
    assert switched_off[::2] == ("fail", "ENABLED")
    (public,) = checks[f"bucket {names.bucket}"]
    assert public[:2] == ("fail", "public access block is missing: the bucket can be made public")
    assert checks[f"table {names.config}"] == [("fail", "it does not exist", "a table")]
    (index,) = checks[f"table {names.events}"]
    assert index == ("fail", "index GSI7-index is missing", "GSI7PK, GSI7SK (ALL)")
    (stream,) = checks[f"table {names.ledger}"]
    assert stream == ("fail", "stream is missing: no event is published", "NEW_IMAGE")
    remedies = {entry["remedy"] for some in checks_by_name(broken).values() for entry in some}
    assert f"`longshore aws deploy --stage {stage_installation.stage}`" in remedies


def test_without_a_deployment_every_missing_part_is_reported_with_the_remedy(
    stage_installation: DoctorInstallation, inside: InstallationCall
) -> None:
    answer = inside("doctor")

    assert answer.code == 1
    shown = " ".join(answer.out.split())
    for part in ("ledger", "events", "output", "config"):
        assert f"table longshore-{stage_installation.stage}-{part} fail it does not exist" in shown
    assert f"bus {stage_installation.names.bus} fail it does not exist" in shown
    assert f"`longshore aws deploy --stage {stage_installation.stage}`" in shown


def test_missing_credentials_are_reported_at_once_with_the_remedy(
    stage_installation: DoctorInstallation,
    inside: InstallationCall,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    checks = checks_by_name(inside("doctor", "-o", "json"))

    (identity,) = checks["identity"]
    assert (identity["status"], identity["detail"]) == ("fail", "no AWS credentials were found")
    assert "AWS_PROFILE" in identity["remedy"]
    assert not [name for name in checks if name.startswith(("table", "queue", "reach"))]


def test_without_a_network_the_doctor_ends_in_time_and_reports_the_network(
    stage_installation: DoctorInstallation,
    inside: InstallationCall,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("longshore.adapters.aws.deploy.doctor_probe.PROBE_TIMEOUT_S", 0.5)
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections, says nothing
        port = deaf.getsockname()[1]
        monkeypatch.setenv("LONGSHORE_AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        answer = inside("doctor", "-o", "json")

    checks = checks_by_name(answer)
    assert answer.code == 1
    assert time.monotonic() - begun < 10
    for service in ("dynamodb", "sqs", "s3", "events"):
        (reach,) = checks[f"reach {service}"]
        assert reach["status"] == "fail"
        assert "network" in reach["remedy"]
    assert not [name for name in checks if name.startswith(("table", "queue"))]
    assert PROBE_TIMEOUT_S < 10  # two questions after each other are the longest way


def _reply(**more: Any) -> ProbeResult:
    return ProbeResult(service="sts", operation="get_caller_identity", **more)


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (_reply(code="ExpiredToken"), CheckStatus.FAIL, "have expired"),
        (_reply(code="InvalidClientTokenId"), CheckStatus.FAIL, "does not accept the credentials"),
        (_reply(code="AccessDenied"), CheckStatus.WARN, "unknown"),
        (_reply(unreachable_reason="no answer within 8 s"), CheckStatus.WARN, "unknown"),
    ],
)
def test_a_problem_with_the_identity_is_reported(
    reply: ProbeResult, status: CheckStatus, words: str
) -> None:
    check = identity_check(reply)

    assert check.status is status
    assert words in check.detail
    assert status is CheckStatus.WARN or "aws sso login" in (check.remedy or "")


@pytest.mark.parametrize(
    ("seconds", "status"),
    [
        (0, CheckStatus.OK),
        (2.9, CheckStatus.OK),
        (-2.9, CheckStatus.OK),
        (4, CheckStatus.WARN),
        (-4, CheckStatus.WARN),
        (302, CheckStatus.FAIL),
    ],
)
def test_a_clock_that_is_off_is_reported_before_aws_refuses_calls(
    seconds: float, status: CheckStatus
) -> None:
    server_time = datetime(2026, 11, 16, 12, tzinfo=UTC)
    local_time = server_time + timedelta(seconds=0.5 + seconds)  # AWS returns whole seconds
    reply = _reply(
        response={}, server_time=server_time, local_time=local_time, duration=timedelta(seconds=1)
    )

    (check,) = clock_of([reply], timedelta(seconds=2))

    assert isinstance(check, Check)
    assert check.status is status
