"""The stack that holds everything that lasts: queues, tables, the bus and the bucket."""

from __future__ import annotations

from typing import Any, Final

from longshore.adapters.aws.shapes import table_shapes
from longshore.adapters.aws.stacks.alarms import add_alarm, has_topic
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.functions import FUNCTIONS, VISIBILITY_FACTOR
from longshore.adapters.aws.stacks.parts import (
    Json,
    Template,
    arn,
    att,
    identifier,
    policy,
    ref,
    sub,
)
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.states import Priority

_DAY_S = 24 * 3600
_VISIBILITY_S = 900
_RETENTION_S = 4 * _DAY_S
_DEAD_RETENTION_S = 14 * _DAY_S
_CONSUMER_TRIES = 10
# Tables in which items say themselves when they end, and the attribute that says it.
_EXPIRING: Final = {"events": "ttl", "output": "ttl"}
CONSUMERS: Final = {"history": "save-event", "dispatcher": "dispatcher"}
"""Who hears of events through a queue, and the function that it feeds."""
UNDELIVERED: Final = "undelivered"
# A table or a bucket outlives its stack, unless its very creation failed half way.
_KEPT: Final = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}


def infrastructure(config: StageConfig) -> Json:
    """Its template."""
    template = Template(
        config.stage, f"Longshore {config.stage}: queues, tables, the bus and the bucket"
    )
    _topic(template, config)
    _tables(template, config)
    _bucket(template, config)
    _bus(template, config)
    for queue in config.queues:
        _queue(template, config, queue)
    _consumers(template, config)
    return template.document()


def _tables(template: Template, config: StageConfig) -> None:
    names = config.names
    called = {name: getattr(names, name) for name in ("ledger", "events", "output", "house")}
    shapes = {shape["TableName"]: shape for shape in table_shapes(names)}
    for name, full_name in called.items():
        shape = {**shapes[full_name]}
        shape["SSESpecification"] = {"SSEEnabled": shape["SSESpecification"]["Enabled"]}
        if stream := shape.get("StreamSpecification"):
            shape["StreamSpecification"] = {"StreamViewType": stream["StreamViewType"]}
        if name in _EXPIRING:
            shape["TimeToLiveSpecification"] = {"AttributeName": _EXPIRING[name], "Enabled": True}
        if config.protected:
            shape["DeletionProtectionEnabled"] = True
            shape["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
        table = template.add(identifier(name, "table"), "AWS::DynamoDB::Table", shape, **_KEPT)
        template.export(f"{name}-table", att(table), f"ARN of the table {full_name}")
        if stream:
            template.export("ledger-stream", att(table, "StreamArn"), "What was committed")


def _bucket(template: Template, config: StageConfig) -> None:
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
        **_KEPT,
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


def _bus(template: Template, config: StageConfig) -> None:
    bus = template.add("Bus", "AWS::Events::EventBus", {"Name": config.names.bus})
    template.export("bus", att(bus), "The bus on which events are told")


def _queue(template: Template, config: StageConfig, queue: str) -> None:
    visibility = VISIBILITY_FACTOR * FUNCTIONS["dlq-processor"].timeout_s
    for priority in Priority:
        name = identifier(queue, priority.name.lower())
        dead = template.add(
            f"Queue{name}Dead",
            "AWS::SQS::Queue",
            {
                "QueueName": config.names.dead(queue, priority),
                "MessageRetentionPeriod": _DEAD_RETENTION_S,
                "VisibilityTimeout": visibility,
                "SqsManagedSseEnabled": True,
                "RedriveAllowPolicy": _only_from(config.names.queue(queue, priority)),
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
                    "deadLetterTargetArn": att(dead),
                    "maxReceiveCount": RECEIVE_LIMIT,
                },
            },
        )
        template.export(
            f"dead-{queue}-{priority.name.lower()}", att(dead), "Messages received too often"
        )
        _watch_age(template, config, lane, config.names.queue(queue, priority))
        _watch_dead(template, config, dead, config.names.dead(queue, priority))


def _consumers(template: Template, config: StageConfig) -> None:
    names = config.names
    dead = template.add(
        "QueueUndelivered",
        "AWS::SQS::Queue",
        {
            "QueueName": names.consumer(UNDELIVERED),
            "MessageRetentionPeriod": _DEAD_RETENTION_S,
            "VisibilityTimeout": VISIBILITY_FACTOR * FUNCTIONS["eventbridge-dlq-alert"].timeout_s,
            "SqsManagedSseEnabled": True,
            "RedriveAllowPolicy": _only_from(*(names.consumer(name) for name in CONSUMERS)),
        },
    )
    template.export(UNDELIVERED, att(dead), "Events that could not be delivered")
    _let_rules_send(template, config, dead, *CONSUMERS)
    _watch_dead(template, config, dead, names.consumer(UNDELIVERED))
    for name, function in CONSUMERS.items():
        queue = template.add(
            f"Queue{identifier(name)}Events",
            "AWS::SQS::Queue",
            {
                "QueueName": names.consumer(name),
                "MessageRetentionPeriod": _RETENTION_S,
                "VisibilityTimeout": VISIBILITY_FACTOR * FUNCTIONS[function].timeout_s,
                "SqsManagedSseEnabled": True,
                "RedrivePolicy": {
                    "deadLetterTargetArn": att(dead),
                    "maxReceiveCount": _CONSUMER_TRIES,
                },
            },
        )
        template.export(f"{name}-events", att(queue), f"Events for {function}")
        _let_rules_send(template, config, queue, name)
        _watch_age(template, config, queue, names.consumer(name))


def _let_rules_send(template: Template, config: StageConfig, queue: str, *rules: str) -> None:
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
                    "Resource": att(queue),
                    "Condition": {"ArnEquals": {"aws:SourceArn": sources}},
                }
            ),
        },
    )


def _only_from(*queues: str) -> Json:
    # Written out: a reference would be a circle, for those queues name this one.
    return {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [arn("sqs", queue) for queue in queues],
    }


def _watch_dead(template: Template, config: StageConfig, queue: str, name: str) -> None:
    add_alarm(
        template,
        config,
        queue,
        f"something is in {name}",
        (
            "AWS/SQS",
            "ApproximateNumberOfMessagesVisible",
            {"QueueName": att(queue, "QueueName")},
            "Maximum",
        ),
        above=0,
        topic=_topic_of(config),
    )


def _watch_age(template: Template, config: StageConfig, queue: str, name: str) -> None:
    minutes = config.alarms.oldest_message_minutes
    add_alarm(
        template,
        config,
        f"{queue}Age",
        f"a message of {name} waits for more than {minutes} minutes",
        (
            "AWS/SQS",
            "ApproximateAgeOfOldestMessage",
            {"QueueName": att(queue, "QueueName")},
            "Maximum",
        ),
        above=60 * minutes,
        topic=_topic_of(config),
    )


def _topic_of(config: StageConfig) -> Any:
    return config.alarms.topic or ref("Alarms")


def _topic(template: Template, config: StageConfig) -> None:
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
    template.export("alarms", _topic_of(config), "Topic to which alarms are told")
