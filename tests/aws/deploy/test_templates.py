"""What the templates say, without deploying them."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate import privileges_page
from longshore.adapters.aws.deploy.stacks import template
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig, read_stage_config
from longshore.adapters.aws.deploy.stacks.template import (
    FUNCTIONS,
    GRANTS,
    RESOURCES,
    STACKS,
    is_enabled,
    templates,
)
from longshore.adapters.aws.names import (
    EVENT_INDEXES,
    LISTING_INDEX,
    NAME_INDEX,
    STATE_INDEX,
    Names,
)
from longshore.core import undelivered
from longshore.core.documents import job_blob_prefixes
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.errors import ConfigurationError
from longshore.services import dead_letters
from longshore.services.dispatcher import ENDING_EVENTS
from longshore.settings import Settings
from longshore.wiring.deploy import render_templates
from tests.aws.deploy.permissions import EVENT_SOURCE_REASON, RolePolicies

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
TEMPLATES = Path(template.__file__).with_name("templates")
FULL: dict[str, Any] = {
    "queues": ["default", "mail"],
    "alarms": {"email": ["operators@example.com"]},
    "worker": {
        "image": "123456789012.dkr.ecr.eu-central-1.amazonaws.com/shop:1",
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
        "secrets": ["ANTHROPIC_API_KEY"],
    },
    "server": {"image": "shop:1", "subnets": ["subnet-1"], "security_groups": ["sg-1"]},
}
"""A stage that has all there is."""


def stage(name: str) -> StageConfig:
    path = INFRA / f"{name}.yaml"
    return read_stage_config(name, yaml.safe_load(path.read_text(encoding="utf-8")), path.name)


def stage_templates(config: StageConfig) -> dict[str, Any]:
    return templates(config, dispatcher_events=ENDING_EVENTS)


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    return stage_templates(read_stage_config("prod", FULL, "test"))


def resources(documents: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents.values():
        for name, resource in document["Resources"].items():
            if resource["Type"] == kind:
                yield name, resource


def properties(documents: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [resource["Properties"] for _, resource in resources(documents, kind)]


def test_the_rendered_templates_are_up_to_date() -> None:
    document = yaml.safe_load((INFRA / "dev.yaml").read_text(encoding="utf-8"))
    expected = render_templates("dev", document, "dev.yaml")
    folder = INFRA / "templates"

    assert {page.name for page in folder.iterdir()} == set(expected)
    for name, text in expected.items():
        remedy = "run `longshore aws deploy --stage dev --render infra/templates`"
        assert (folder / name).read_text(encoding="utf-8") == text, remedy


def test_no_name_occurs_twice_in_a_mapping_of_a_template() -> None:
    files = [*TEMPLATES.glob("*.yaml")]

    assert len(files) > len(STACKS)
    for file in files:
        document = yaml.compose(file.read_text(encoding="utf-8"))
        for mapping in mappings(document):
            names = [key.value for key, _ in mapping.value]
            assert len(names) == len(set(names)), (file.name, names)


def mappings(node: Any) -> Iterator[yaml.MappingNode]:
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from mappings(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from mappings(item)


def test_the_linter_of_aws_finds_nothing(tmp_path: Path, full: dict[str, Any]) -> None:
    lint = shutil.which("cfn-lint", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("cfn-lint is not installed")
    for name, document in full.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    files = [str(path) for path in tmp_path.iterdir()]

    done = subprocess.run(
        [lint, "--regions", "eu-central-1", "--", *files],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout + done.stderr == ""
    assert len(files) == len(STACKS)


def test_tables_are_what_the_adapters_expect_encrypted_and_kept(full: dict[str, Any]) -> None:
    names = Names(stage="prod", bucket="")
    tables = {
        item["Properties"]["TableName"]: item for _, item in resources(full, "AWS::DynamoDB::Table")
    }

    assert tuple(tables) == names.tables
    for table in tables.values():
        assert table["Properties"]["BillingMode"] == "PAY_PER_REQUEST"
        assert table["Properties"]["SSESpecification"] == {"SSEEnabled": True}
        recovery = table["Properties"]["PointInTimeRecoverySpecification"]
        assert recovery == {"PointInTimeRecoveryEnabled": True}
        assert table["DeletionPolicy"] == "RetainExceptOnCreate"
    indexes = {
        name: {index["IndexName"] for index in item["Properties"].get("GlobalSecondaryIndexes", ())}
        for name, item in tables.items()
    }
    assert indexes == {
        names.ledger: {LISTING_INDEX, STATE_INDEX, NAME_INDEX},
        names.events: set(EVENT_INDEXES),
        names.output: set(),
        names.config: set(),
    }
    assert tables[names.ledger]["Properties"]["StreamSpecification"] == {
        "StreamViewType": "NEW_IMAGE"
    }
    expiring = {
        name for name, item in tables.items() if "TimeToLiveSpecification" in item["Properties"]
    }
    assert expiring == {names.events, names.ledger}


def test_every_queue_and_priority_has_its_numbers_and_its_dead_letters(
    full: dict[str, Any],
) -> None:
    names = Names(stage="prod", bucket="")
    queues = {item["QueueName"]: item for item in properties(full, "AWS::SQS::Queue")}
    lanes = [(queue, priority) for queue in FULL["queues"] for priority in Priority]

    assert len(queues) == 2 * len(lanes) + 3
    for queue, priority in lanes:
        lane, dead = (
            queues[names.queue(queue, priority)],
            queues[names.dead_letter_queue(queue, priority)],
        )
        assert lane["VisibilityTimeout"] == 900
        assert lane["MessageRetentionPeriod"] == 4 * 86_400
        assert lane["RedrivePolicy"]["maxReceiveCount"] == RECEIVE_LIMIT == 20
        assert dead["MessageRetentionPeriod"] == 14 * 86_400
    assert all(item["SqsManagedSseEnabled"] for item in queues.values())


def test_a_queue_hides_a_message_longer_than_its_function_may_take(full: dict[str, Any]) -> None:
    longest = max(entry.timeout_s for entry in FUNCTIONS.values() if is_fed_by_a_queue(entry.name))

    assert all(
        item["VisibilityTimeout"] >= 6 * longest for item in properties(full, "AWS::SQS::Queue")
    )


def is_fed_by_a_queue(function: str) -> bool:
    return any(
        grant.reason == EVENT_SOURCE_REASON and "sqs:ReceiveMessage" in grant.actions
        for grant in GRANTS[function]
    )


# As in AWS's own policies AWSLambdaSQSQueueExecutionRole and AWSLambdaDynamoDBExecutionRole. Lambda
# makes these calls, so no recorded call of ours shows them.
EVENT_SOURCE_ACTIONS = {
    "queue": {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
    "stream": {f"dynamodb:{item}" for item in ("DescribeStream", "GetRecords", "GetShardIterator")}
    | {"dynamodb:ListStreams"},
}


def test_every_function_may_read_what_it_is_mapped_to_and_nothing_else(
    full: dict[str, Any],
) -> None:
    exported = {
        item["Export"]["Name"]: item["Value"]["Fn::GetAtt"][0]
        for item in full["infrastructure"]["Outputs"].values()
        if "Fn::GetAtt" in item["Value"]
    }
    resources_by_id = full["infrastructure"]["Resources"]
    mapped: dict[str, set[str]] = {}
    for item in properties(full, "AWS::Lambda::EventSourceMapping"):
        source = resources_by_id[exported[item["EventSourceArn"]["Fn::ImportValue"]]]["Properties"]
        name = source.get("QueueName") or source["TableName"]
        mapped.setdefault(item["FunctionName"]["Ref"], set()).add(name)

    rights = RolePolicies(Names(stage="prod", bucket=""), read_stage_config("prod", FULL, "test"))
    may = {
        FUNCTIONS[name].logical_id: rights.event_sources(name)
        for name in FUNCTIONS
        if rights.event_sources(name)
    }
    assert {name: {source for source, _ in fed} for name, fed in may.items()} == mapped
    for fed in may.values():
        for source in {source for source, _ in fed}:
            kind = "stream" if source == "longshore-prod-ledger" else "queue"
            assert {action for item, action in fed if item == source} == EVENT_SOURCE_ACTIONS[kind]
    mappings = properties(full, "AWS::Lambda::EventSourceMapping")
    assert all(item["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for item in mappings)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=lambda item: item.name)
def test_every_function_has_a_handler_a_log_that_ends_and_a_role_of_its_own(
    function: Any, full: dict[str, Any]
) -> None:
    module, _, name = function.handler.rpartition(".")
    result = full[function.stack]["Resources"]

    assert callable(getattr(importlib.import_module(module), name))
    assert result[f"{function.logical_id}Log"]["Properties"]["RetentionInDays"] == 30
    assert result[function.logical_id]["Properties"]["Role"] == {
        "Fn::GetAtt": [f"{function.logical_id}Role", "Arn"]
    }
    assert {f"{function.logical_id}ErrorsAlarm", f"{function.logical_id}ThrottlesAlarm"} <= set(
        result
    )


def test_a_policy_covers_all_resources_only_where_aws_offers_nothing_narrower(
    full: dict[str, Any],
) -> None:
    wide = {"sqs:ListQueues", "ecr:GetAuthorizationToken"}
    for role in properties(full, "AWS::IAM::Role"):
        for sentence in role["Policies"][0]["PolicyDocument"]["Statement"]:
            actions = set(sentence["Action"])
            assert not any("*" in action for action in actions)
            assert sentence["Resource"] != "*" or actions <= wide


def test_the_bucket_is_closed_to_all_but_tls(full: dict[str, Any]) -> None:
    (bucket,) = properties(full, "AWS::S3::Bucket")
    (policy,) = properties(full, "AWS::S3::BucketPolicy")
    (sentence,) = policy["PolicyDocument"]["Statement"]

    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["BucketEncryption"]
    rule, *_ = bucket["LifecycleConfiguration"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert (sentence["Effect"], sentence["Action"]) == ("Deny", "s3:*")
    assert sentence["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_no_rule_of_the_bucket_expires_blobs_of_a_job(full: dict[str, Any]) -> None:
    (bucket,) = properties(full, "AWS::S3::Bucket")
    rules = bucket["LifecycleConfiguration"]["Rules"]
    expiring = [rule["Prefix"] for rule in rules if "ExpirationInDays" in rule]

    assert expiring == [dead_letters.FOLDER, undelivered.KEY_PREFIX]
    assert not any(key.startswith(tuple(expiring)) for key in job_blob_prefixes("job-one"))


def test_a_protected_bucket_keeps_what_the_tables_can_be_restored_to(
    full: dict[str, Any],
) -> None:
    (bucket,) = properties(full, "AWS::S3::Bucket")
    rules = bucket["LifecycleConfiguration"]["Rules"]
    (old,) = [rule for rule in rules if "NoncurrentVersionExpiration" in rule]
    (unprotected,) = properties(stage_templates(stage("dev")), "AWS::S3::Bucket")

    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    # Point-in-time recovery of DynamoDB goes back 35 days.
    assert old["NoncurrentVersionExpiration"] == {"NoncurrentDays": 35}
    assert old["ExpiredObjectDeleteMarker"] is True
    assert "Prefix" not in old
    assert unprotected["VersioningConfiguration"] == {"Status": "Suspended"}


def test_only_rules_may_send_to_the_queues_of_consumers(full: dict[str, Any]) -> None:
    policies = properties(full, "AWS::SQS::QueuePolicy")

    assert len(policies) == 3
    for policy in policies:
        (sentence,) = policy["PolicyDocument"]["Statement"]
        assert sentence["Principal"] == {"Service": "events.amazonaws.com"}
        sources = sentence["Condition"]["ArnEquals"]["aws:SourceArn"]
        assert all(":rule/longshore-prod-events/" in item["Fn::Sub"] for item in sources)


def test_only_the_sweepers_schedule_is_enabled_in_dev() -> None:
    def states(name: str) -> dict[str, str]:
        result = resources(stage_templates(stage(name)), "AWS::Events::Rule")
        return {
            rule: item["Properties"]["State"]
            for rule, item in result
            if "State" in item["Properties"]
        }

    assert states("dev") == {"SweeperSchedule": "ENABLED", "HealthCheckSchedule": "DISABLED"}
    assert set(states("prod").values()) == {"ENABLED"}


def test_prod_is_protected_and_dev_is_not() -> None:
    assert stage("prod").protected
    assert not stage("dev").protected
    tables = properties(stage_templates(stage("prod")), "AWS::DynamoDB::Table")
    assert all(item["DeletionProtectionEnabled"] for item in tables)


def test_every_imported_value_is_exported_by_an_earlier_stack(full: dict[str, Any]) -> None:
    exported: set[str] = set()
    for name in STACKS:
        imported = set(imports_in(full[name]))
        assert imported <= exported
        exported |= {item["Export"]["Name"] for item in full[name].get("Outputs", {}).values()}


def imports_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "Fn::ImportValue" in value:
            yield value["Fn::ImportValue"]
        for item in value.values():
            yield from imports_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from imports_in(item)


def test_a_worker_is_killed_after_it_had_time_to_drain(full: dict[str, Any]) -> None:
    (container,) = full["worker"]["Resources"]["TaskDefinition"]["Properties"][
        "ContainerDefinitions"
    ]
    environment = {item["Name"]: item["Value"] for item in container["Environment"]}
    service = full["worker"]["Resources"]["Service"]["Properties"]

    assert container["StopTimeout"] == 120  # the longest time that Fargate has
    drain_grace_s = int(environment["LONGSHORE_WORKER_DRAIN_GRACE"].removesuffix("s"))
    assert Settings().worker.kill_grace.total_seconds() + drain_grace_s < 120
    assert service["DeploymentConfiguration"]["DeploymentCircuitBreaker"]["Rollback"]
    (secret,) = container["Secrets"]
    assert secret["ValueFrom"]["Fn::Sub"].endswith("parameter/longshore/prod/ANTHROPIC_API_KEY")


def test_workers_and_servers_are_deployed_only_with_an_image() -> None:
    assert [name for name in STACKS if not is_enabled(stage("dev"), name)] == ["worker", "server"]
    assert all(is_enabled(read_stage_config("prod", FULL, "test"), name) for name in STACKS)


def test_the_page_of_privileges_says_what_the_policies_say(full: dict[str, Any]) -> None:
    page = privileges_page()
    for name, grants in GRANTS.items():
        _, _, after = page.partition(f"\n## {name}\n")
        section = after.partition("\n## ")[0]
        for grant in grants:
            (row,) = (
                item for item in section.splitlines() if RESOURCES[grant.resource]["label"] in item
            )
            assert all(f"`{item}`" in row for item in grant.actions)
        roles = [f"{FUNCTIONS[name].logical_id}Role"] if name in FUNCTIONS else ["TaskRole"]
        stack = FUNCTIONS[name].stack if name in FUNCTIONS else name
        sentences = full[stack]["Resources"][roles[0]]["Properties"]["Policies"][0]
        allowed = {
            action for item in sentences["PolicyDocument"]["Statement"] for action in item["Action"]
        }
        listed = {action for grant in grants for action in grant.actions}
        assert {item for item in allowed if not item.startswith("logs:")} == listed


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"queue": ["a"]}, "unknown name 'queue'; did you mean 'queues'?"),
        ({"queues": []}, "queues: at least one is required"),
        ({"queues": "default"}, "queues: Input should be a valid array, not 'default'"),
        ({"queues": ["a b"]}, "queues: 'a b' is not a name"),
        ({"queues": ["q" * 60]}, "is too long by 6 characters for SQS"),
        ({"protected": "yes"}, "protected: Input should be a valid boolean, not 'yes'"),
        ({"log_retention_days": 8}, "CloudWatch has 7 days, not 8"),
        ({"api": {"burst": 0}}, "api.burst: Input should be greater than or equal to 1, not 0"),
        ({"api": ["x"]}, "api: Input should be an object, not ['x']"),
        ({"worker": {"image": "x"}}, "worker.subnets: at least one is required"),
        ({"worker": {"cpu": 1000}}, "worker.cpu: Fargate has 256, 512"),
        ({"worker": {"cpu": 256, "memory_mib": 4096}}, "Fargate has 512 to 2048"),
        (
            {"functions": {"python": "3.9"}},
            "functions.python: Input should be '3.12' or '3.13'",
        ),
        ({"alarms": {"topic": "arn:x", "email": ["a@b"]}}, "not both"),
        ({"bucket": "Capital"}, "is not a valid bucket name"),
        ({"settings": {"worker.concurency": 3}}, "no setting is called 'worker.concurency'"),
        ({"settings": {"alerts.slack_token": "xoxb"}}, "alerts.slack_token is a secret"),
        ({"settings": {"backend": "sqlite"}}, "backend follows from the stage"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_document_is_refused_with_what_to_do(
    document: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        render_templates("dev", document, "dev.yaml")

    assert any(message in problem for problem in refused.value.problems), refused.value.problems
    assert all(problem.startswith("dev.yaml: ") for problem in refused.value.problems)


@pytest.mark.parametrize("name", ["Dev", "1dev", "a" * 21, "a_b", ""])
def test_a_stage_must_have_a_name_that_every_part_of_aws_takes(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid stage name"):
        read_stage_config(name, {}, "test")


def test_all_problems_of_a_document_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_stage_config("dev", {"queues": [1], "nothing": 2, "api": {"burst": "x"}}, "test")

    assert len(refused.value.problems) == 3
