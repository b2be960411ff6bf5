"""The stack that holds everything that lasts: queues, tables, the bus and the bucket."""

from __future__ import annotations

from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.alarms import add_alarm, has_topic
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
from longshore.adapters.aws.names import table_schemas
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority

_DAY_S = 24 * 3600
_VISIBILITY_S = 900
_RETENTION_S = 4 * _DAY_S
_DEAD_RETENTION_S = 14 * _DAY_S
_CONSUMER_RECEIVE_LIMIT = 10
# Tables in which items say themselves when they end, and the attribute that says it.
_TTL_ATTRIBUTES: Final = {"events": "ttl", "output": "ttl"}
CONSUMERS: Final = {"history": "save-event", "dispatcher": "dispatcher"}
"""Who hears of events through a queue, and the function that it feeds."""
UNDELIVERED: Final = "undelivered"
# A table or a bucket outlives its stack, unless its very creation failed half way.
_RETAINED: Final = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}


def infrastructure_template(config: StageConfig) -> Json:
    """Its template."""
    template = StackTemplate(
        config.stage, f"Longshore {config.stage}: queues, tables, the bus and the bucket"
    )
    _add_topic(template, config)
    _add_tables(template, config)
    _add_bucket(template, config)
    _add_bus(template, config)
    for queue in config.queues:
        _add_queue(template, config, queue)
    _add_consumers(template, config)
    return template.document()


def _add_tables(template: StackTemplate, config: StageConfig) -> None:
    names = config.names
    called = {name: getattr(names, name) for name in ("ledger", "events", "output", "config")}
    shapes = {shape["TableName"]: shape for shape in table_schemas(names)}
    for name, full_name in called.items():
        shape = {**shapes[full_name]}
        shape["SSESpecification"] = {"SSEEnabled": shape["SSESpecification"]["Enabled"]}
        if stream := shape.get("StreamSpecification"):
            shape["StreamSpecification"] = {"StreamViewType": stream["StreamViewType"]}
        if name in _TTL_ATTRIBUTES:
            shape["TimeToLiveSpecification"] = {
                "AttributeName": _TTL_ATTRIBUTES[name],
                "Enabled": True,
            }
        if config.protected:
            shape["DeletionProtectionEnabled"] = True
            shape["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
        table = template.add(logical_id(name, "table"), "AWS::DynamoDB::Table", shape, **_RETAINED)
        template.export(f"{name}-table", get_att(table), f"ARN of the table {full_name}")
        if stream:
            template.export("ledger-stream", get_att(table, "StreamArn"), "What was committed")


def _add_bucket(template: StackTemplate, config: StageConfig) -> None:
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
                        # Parts of an upload whose process died are paid for, and nobody sees them.
                        "Id": "AbortIncompleteMultipartUpload",
                        "Status": "Enabled",
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
                    }
                ]
            },
        },
        **_RETAINED,
    )
    whole = sub("arn:${AWS::Partition}:s3:::${Bucket}")
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
                    "Resource": [whole, sub("arn:${AWS::Partition}:s3:::${Bucket}/*")],
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                }
            ),
        },
    )
    template.export("bucket", ref(bucket), "Bucket of the blobs: the setting aws.bucket")


def _add_bus(template: StackTemplate, config: StageConfig) -> None:
    bus = template.add("Bus", "AWS::Events::EventBus", {"Name": config.names.bus})
    template.export("bus", get_att(bus), "The bus on which events are told")


def _add_queue(template: StackTemplate, config: StageConfig, queue: str) -> None:
    visibility = VISIBILITY_FACTOR * FUNCTIONS["dlq-processor"].timeout_s
    for priority in Priority:
        name = logical_id(queue, priority.name.lower())
        dead = template.add(
            f"Queue{name}Dead",
            "AWS::SQS::Queue",
            {
                "QueueName": config.names.dead_letter_queue(queue, priority),
                "MessageRetentionPeriod": _DEAD_RETENTION_S,
                "VisibilityTimeout": visibility,
                "SqsManagedSseEnabled": True,
                "RedriveAllowPolicy": _redrive_allow_policy(config.names.queue(queue, priority)),
            },
        )
        lane = template.add(
            f"Queue{name}",
            "AWS::SQS::Queue",
            {
                "QueueName": config.names.queue(queue, priority),
                "MessageRetentionPeriod": _RETENTION_S,
                "VisibilityTimeout": _VISIBILITY_S,
                "SqsManagedSseEnabled": True,
                "RedrivePolicy": {
                    "deadLetterTargetArn": get_att(dead),
                    "maxReceiveCount": RECEIVE_LIMIT,
                },
            },
        )
        template.export(
            f"dead-{queue}-{priority.name.lower()}", get_att(dead), "Messages received too often"
        )
        _add_age_alarm(template, config, lane, config.names.queue(queue, priority))
        _add_dead_letter_alarm(
            template, config, dead, config.names.dead_letter_queue(queue, priority)
        )


def _add_consumers(template: StackTemplate, config: StageConfig) -> None:
    names = config.names
    dead = template.add(
        "QueueUndelivered",
        "AWS::SQS::Queue",
        {
            "QueueName": names.consumer(UNDELIVERED),
            "MessageRetentionPeriod": _DEAD_RETENTION_S,
            "VisibilityTimeout": VISIBILITY_FACTOR * FUNCTIONS["eventbridge-dlq-alert"].timeout_s,
            "SqsManagedSseEnabled": True,
            "RedriveAllowPolicy": _redrive_allow_policy(
                *(names.consumer(name) for name in CONSUMERS)
            ),
        },
    )
    template.export(UNDELIVERED, get_att(dead), "Events that could not be delivered")
    _allow_rules_to_send(template, config, dead, *CONSUMERS)
    _add_dead_letter_alarm(template, config, dead, names.consumer(UNDELIVERED))
    for name, function in CONSUMERS.items():
        queue = template.add(
            f"Queue{logical_id(name)}Events",
            "AWS::SQS::Queue",
            {
                "QueueName": names.consumer(name),
                "MessageRetentionPeriod": _RETENTION_S,
                "VisibilityTimeout": VISIBILITY_FACTOR * FUNCTIONS[function].timeout_s,
                "SqsManagedSseEnabled": True,
                "RedrivePolicy": {
                    "deadLetterTargetArn": get_att(dead),
                    "maxReceiveCount": _CONSUMER_RECEIVE_LIMIT,
                },
            },
        )
        template.export(f"{name}-events", get_att(queue), f"Events for {function}")
        _allow_rules_to_send(template, config, queue, name)
        _add_age_alarm(template, config, queue, names.consumer(name))


def _allow_rules_to_send(
    template: StackTemplate, config: StageConfig, queue: str, *rules: str
) -> None:
    bus = config.names.bus
    sources = [arn("events", f"rule/{bus}/{config.names.consumer(rule)}") for rule in rules]
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


def _redrive_allow_policy(*queues: str) -> Json:
    # Written out: a reference would be a circle, for those queues name this one.
    return {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [arn("sqs", queue) for queue in queues],
    }


def _add_dead_letter_alarm(
    template: StackTemplate, config: StageConfig, queue: str, name: str
) -> None:
    add_alarm(
        template,
        config,
        queue,
        f"something is in {name}",
        (
            "AWS/SQS",
            "ApproximateNumberOfMessagesVisible",
            {"QueueName": get_att(queue, "QueueName")},
            "Maximum",
        ),
        threshold=0,
        topic=_topic_arn(config),
    )


def _add_age_alarm(template: StackTemplate, config: StageConfig, queue: str, name: str) -> None:
    minutes = config.alarms.oldest_message_minutes
    add_alarm(
        template,
        config,
        f"{queue}Age",
        f"a message of {name} waits for more than {minutes} minutes",
        (
            "AWS/SQS",
            "ApproximateAgeOfOldestMessage",
            {"QueueName": get_att(queue, "QueueName")},
            "Maximum",
        ),
        threshold=60 * minutes,
        topic=_topic_arn(config),
    )


def _topic_arn(config: StageConfig) -> Any:
    return config.alarms.topic or ref("Alarms")


def _add_topic(template: StackTemplate, config: StageConfig) -> None:
    if not has_topic(config):
        return
    if config.alarms.topic is None:
        template.add(
            "Alarms",
            "AWS::SNS::Topic",
            {
                "TopicName": f"longshore-{config.stage}-alarms",
                "Subscription": [
                    {"Protocol": "email", "Endpoint": address} for address in config.alarms.email
                ],
            },
        )
    template.export("alarms", _topic_arn(config), "Topic to which alarms are told")
