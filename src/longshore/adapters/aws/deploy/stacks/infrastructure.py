"""The stack of everything that holds data: queues, tables, the bus and the bucket."""

from __future__ import annotations

from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.functions import FUNCTIONS, VISIBILITY_FACTOR
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    Json,
    StackTemplate,
    arn,
    get_att,
    logical_id,
    policy,
    ref,
    sub,
)
from longshore.adapters.aws.names import UNDELIVERED, table_schemas
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority

_DAY_S = 24 * 3600
_VISIBILITY_S = 900
_RETENTION_S = 4 * _DAY_S
_DEAD_RETENTION_S = 14 * _DAY_S
_CONSUMER_RECEIVE_LIMIT = 10
# Tables whose items expire, and the attribute with the time.
_TTL_ATTRIBUTES: Final = {"events": "ttl", "output": "ttl"}
CONSUMERS: Final = {"history": "save-event", "dispatcher": "dispatcher"}
"""Consumers of events with a queue, and the function that the queue invokes."""
# A table or bucket outlives its stack, unless its creation failed.
_RETAINED: Final = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}


def infrastructure_template(config: StageConfig) -> Json:
    template = StackTemplate(config, "queues, tables, the bus and the bucket")
    _add_topic(template)
    _add_tables(template)
    _add_bucket(template)
    bus = template.add("Bus", "AWS::Events::EventBus", {"Name": config.names.bus})
    template.export("bus", get_att(bus), "The event bus")
    for queue in config.queues:
        for priority in Priority:
            _add_lane(template, queue, priority)
    _add_consumers(template)
    return template.document()


def _add_tables(template: StackTemplate) -> None:
    names = template.config.names
    schemas = {schema["TableName"]: schema for schema in table_schemas(names)}
    for name in ("ledger", "events", "output", "config"):
        full_name = getattr(names, name)
        schema = {**schemas[full_name]}
        schema["SSESpecification"] = {"SSEEnabled": schema["SSESpecification"]["Enabled"]}
        if stream := schema.get("StreamSpecification"):
            schema["StreamSpecification"] = {"StreamViewType": stream["StreamViewType"]}
        if name in _TTL_ATTRIBUTES:
            schema["TimeToLiveSpecification"] = {
                "AttributeName": _TTL_ATTRIBUTES[name],
                "Enabled": True,
            }
        if template.config.protected:
            schema["DeletionProtectionEnabled"] = True
            schema["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
        table = template.add(logical_id(name, "table"), "AWS::DynamoDB::Table", schema, **_RETAINED)
        template.export(f"{name}-table", get_att(table), f"ARN of the table {full_name}")
        if stream:
            template.export("ledger-stream", get_att(table, "StreamArn"), "Stream of the ledger")


def _add_bucket(template: StackTemplate) -> None:
    config = template.config
    name = config.bucket or sub(f"longshore-{config.stage}-${{AWS::AccountId}}-${{AWS::Region}}")
    bucket = template.add(
        "Bucket",
        "AWS::S3::Bucket",
        {
            "BucketName": name,
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [
                    {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
                ]
            },
            "PublicAccessBlockConfiguration": {
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "LifecycleConfiguration": {
                "Rules": [
                    {
                        # Parts of an unfinished upload are invisible and cost money.
                        "Id": "AbortIncompleteMultipartUpload",
                        "Status": "Enabled",
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
                    }
                ]
            },
        },
        **_RETAINED,
    )
    bucket_arn = "arn:${AWS::Partition}:s3:::${Bucket}"
    template.add(
        "BucketPolicy",
        "AWS::S3::BucketPolicy",
        {
            "Bucket": ref(bucket),
            "PolicyDocument": policy(
                {
                    "Sid": "TlsOnly",
                    "Effect": "Deny",
                    "Principal": "*",
                    "Action": "s3:*",
                    "Resource": [sub(bucket_arn), sub(f"{bucket_arn}/*")],
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                }
            ),
        },
    )
    template.export("bucket", ref(bucket), "Bucket of the blobs: the setting aws.bucket")


def _add_sqs_queue(
    template: StackTemplate,
    logical_name: str,
    name: str,
    *,
    visibility_s: int,
    sources: tuple[str, ...] = (),
    dead_letter: tuple[str, int] | None = None,
) -> str:
    """Add a queue with its alarm.

    Args:
        sources: The queues whose dead letters it takes.
        dead_letter: The queue of its dead letters, and after how many receives.
    """
    properties: Json = {
        "QueueName": name,
        "MessageRetentionPeriod": _DEAD_RETENTION_S if sources else _RETENTION_S,
        "VisibilityTimeout": visibility_s,
        "SqsManagedSseEnabled": True,
    }
    if sources:
        # ARNs as text: references would be circular, because those queues refer to this one.
        properties["RedriveAllowPolicy"] = {
            "redrivePermission": "byQueue",
            "sourceQueueArns": [arn("sqs", source) for source in sources],
        }
    if dead_letter is not None:
        target, receives = dead_letter
        properties["RedrivePolicy"] = {
            "deadLetterTargetArn": get_att(target),
            "maxReceiveCount": receives,
        }
    queue = template.add(logical_name, "AWS::SQS::Queue", properties)
    minutes = template.config.alarms.oldest_message_minutes
    alarm, metric, text, threshold = (
        (queue, "ApproximateNumberOfMessagesVisible", f"something is in {name}", 0)
        if sources
        else (
            f"{queue}Age",
            "ApproximateAgeOfOldestMessage",
            f"a message of {name} waits for more than {minutes} minutes",
            60 * minutes,
        )
    )
    template.add_alarm(
        alarm,
        text,
        ("AWS/SQS", metric, {"QueueName": get_att(queue, "QueueName")}, "Maximum"),
        threshold=threshold,
        topic=_topic_arn(template),
    )
    return queue


def _add_lane(template: StackTemplate, queue: str, priority: Priority) -> None:
    names, logical_name = template.config.names, logical_id("queue", queue, priority.name.lower())
    name = names.queue(queue, priority)
    dead = _add_sqs_queue(
        template,
        f"{logical_name}Dead",
        names.dead_letter_queue(queue, priority),
        visibility_s=VISIBILITY_FACTOR * FUNCTIONS["dlq-processor"].timeout_s,
        sources=(name,),
    )
    _add_sqs_queue(
        template,
        logical_name,
        name,
        visibility_s=_VISIBILITY_S,
        dead_letter=(dead, RECEIVE_LIMIT),
    )
    template.export(
        f"dead-{queue}-{priority.name.lower()}", get_att(dead), "Messages received too often"
    )


def _add_consumers(template: StackTemplate) -> None:
    names = template.config.names
    dead = _add_sqs_queue(
        template,
        "QueueUndelivered",
        names.consumer(UNDELIVERED),
        visibility_s=VISIBILITY_FACTOR * FUNCTIONS["eventbridge-dlq-alert"].timeout_s,
        sources=tuple(names.consumer(name) for name in CONSUMERS),
    )
    template.export(UNDELIVERED, get_att(dead), "Events that could not be delivered")
    _allow_rules_to_send(template, dead, *CONSUMERS)
    for name, function in CONSUMERS.items():
        queue = _add_sqs_queue(
            template,
            f"Queue{logical_id(name)}Events",
            names.consumer(name),
            visibility_s=VISIBILITY_FACTOR * FUNCTIONS[function].timeout_s,
            dead_letter=(dead, _CONSUMER_RECEIVE_LIMIT),
        )
        template.export(f"{name}-events", get_att(queue), f"Events for {function}")
        _allow_rules_to_send(template, queue, name)


def _allow_rules_to_send(template: StackTemplate, queue: str, *rules: str) -> None:
    names = template.config.names
    sources = [arn("events", f"rule/{names.bus}/{names.consumer(rule)}") for rule in rules]
    template.add(
        f"{queue}Policy",
        "AWS::SQS::QueuePolicy",
        {
            "Queues": [ref(queue)],
            "PolicyDocument": policy(
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "events.amazonaws.com"},
                    "Action": "sqs:SendMessage",
                    "Resource": get_att(queue),
                    "Condition": {"ArnEquals": {"aws:SourceArn": sources}},
                }
            ),
        },
    )


def _topic_arn(template: StackTemplate) -> Any:
    return template.config.alarms.topic or ref("Alarms")


def _add_topic(template: StackTemplate) -> None:
    alarms = template.config.alarms
    if not alarms.has_topic:
        return
    if alarms.topic is None:
        template.add(
            "Alarms",
            "AWS::SNS::Topic",
            {
                "TopicName": f"longshore-{template.config.stage}-alarms",
                "Subscription": [
                    {"Protocol": "email", "Endpoint": address} for address in alarms.email
                ],
            },
        )
    template.export("alarms", _topic_arn(template), "Topic of the alarms")
