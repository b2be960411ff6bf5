"""Does what AWS's event source mappings do: passes records to handlers and follows their answers.

A stream is read from the first failed record on, or from behind the last record of the batch. A
message of a queue is deleted unless the answer names its id; then it is received again. A handler
that raises has processed nothing.
"""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsClientOptions, AwsResponse
from longshore.adapters.aws.names import Names

Event = dict[str, Any]
Handler = Callable[[Event, Any], Any]

ACCOUNT = "000000000000"
_BATCH_SIZE = 10


class Invocation:
    """The context that AWS passes to a function with an event."""

    aws_request_id = "11111111-2222-3333-4444-555555555555"

    def __init__(self, seconds: float = 60) -> None:
        self._seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self._seconds * 1000)


class Mappings:
    """The mappings of one installation."""

    def __init__(self, options: AwsClientOptions, names: Names) -> None:
        self._runner = asyncio.Runner()
        self._aws = AwsClient(options)
        self._names = names
        self._region = options.region
        self._positions: dict[str, str] = {}  # by shard, the last processed sequence number
        self._urls: dict[str, str] = {}

    def close(self) -> None:
        self._runner.run(self._aws.close())
        self._runner.close()

    def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        return self._runner.run(self._aws.call(service, operation, **parameters))

    # The stream ----------------------------------------------------------------------------------

    def stream_event(self, limit: int = 100) -> tuple[str, Event] | None:
        """A shard and a batch of it as a function gets it; None if there is nothing new."""
        result = self.call("dynamodbstreams", "list_streams", TableName=self._names.ledger)
        arn = result["Streams"][0]["StreamArn"]
        stream = self.call("dynamodbstreams", "describe_stream", StreamArn=arn)
        for shard in stream["StreamDescription"]["Shards"]:
            shard_id = shard["ShardId"]
            behind = self._positions.get(shard_id)
            start = (
                {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": behind}
                if behind
                else {"ShardIteratorType": "TRIM_HORIZON"}
            )
            iterator = self.call(
                "dynamodbstreams", "get_shard_iterator", StreamArn=arn, ShardId=shard_id, **start
            )
            answer = self.call(
                "dynamodbstreams",
                "get_records",
                ShardIterator=iterator["ShardIterator"],
                Limit=limit,
            )
            if answer["Records"]:
                return shard_id, stream_event(answer["Records"], arn)
        return None

    def feed_stream(self, handler: Handler, *, context: Any = None, limit: int = 100) -> int:
        """Pass one batch of the stream to a handler, and return how many records it processed."""
        result = self.stream_event(limit)
        if result is None:
            return 0
        shard_id, event = result
        answer = handler(event, context or Invocation())
        numbers = [record["dynamodb"]["SequenceNumber"] for record in event["Records"]]
        failed = failed_ids(answer)
        done = numbers[: min(map(numbers.index, failed))] if failed else numbers
        if done:
            self._positions[shard_id] = done[-1]
        return len(done)

    def skip_stream(self) -> None:
        """Skip all records that the stream has now."""
        while (result := self.stream_event()) is not None:
            shard_id, event = result
            self._positions[shard_id] = event["Records"][-1]["dynamodb"]["SequenceNumber"]

    # Queues --------------------------------------------------------------------------------------

    def queue_event(self, name: str, limit: int = _BATCH_SIZE, hidden_s: int = 30) -> Event | None:
        """A batch of a queue as a function gets it; None if the queue is empty."""
        answer = self.call(
            "sqs",
            "receive_message",
            QueueUrl=self.url(name),
            MaxNumberOfMessages=limit,
            VisibilityTimeout=hidden_s,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        messages = answer.get("Messages", [])
        arn = f"arn:aws:sqs:{self._region}:{ACCOUNT}:{name}"
        return queue_event(messages, arn) if messages else None

    def feed_queue(self, name: str, handler: Handler, *, context: Any = None) -> int:
        """Pass one batch of a queue to a handler, and return how many messages were deleted."""
        event = self.queue_event(name)
        if event is None:
            return 0
        try:
            failed = failed_ids(handler(event, context or Invocation()))
        except Exception:
            self._make_visible(name, event["Records"])
            raise
        records = event["Records"]
        self._make_visible(name, [item for item in records if item["messageId"] in failed])
        done = [item for item in records if item["messageId"] not in failed]
        for item in done:
            self.call(
                "sqs",
                "delete_message",
                QueueUrl=self.url(name),
                ReceiptHandle=item["receiptHandle"],
            )
        return len(done)

    def _make_visible(self, name: str, records: list[Event]) -> None:
        """Make messages visible at once, so that no test waits for their visibility timeout."""
        for item in records:
            self.call(
                "sqs",
                "change_message_visibility",
                QueueUrl=self.url(name),
                ReceiptHandle=item["receiptHandle"],
                VisibilityTimeout=0,
            )

    def url(self, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self.call("sqs", "get_queue_url", QueueName=name)["QueueUrl"]
        return self._urls[name]

    def message_count(self, name: str) -> int:
        """How many messages a queue holds, hidden ones too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.call(
            "sqs", "get_queue_attributes", QueueUrl=self.url(name), AttributeNames=names
        )
        return sum(int(answer["Attributes"][item]) for item in names)


def failed_ids(response: Any) -> list[str]:
    """The ids in a handler's answer; AWS treats a malformed answer as a failed batch."""
    assert set(response) == {"batchItemFailures"}
    return [item["itemIdentifier"] for item in response["batchItemFailures"]]


def stream_event(records: list[Event], arn: str = "arn:aws:dynamodb:stream") -> Event:
    """The event for a function, from stream records of the client library."""
    return as_json({"Records": [{**record, "eventSourceARN": arn} for record in records]})


def queue_event(messages: list[Event], arn: str) -> Event:
    """The event for a function, from messages of the client library."""
    return as_json({"Records": [queue_record(message, arn) for message in messages]})


def queue_record(message: Event, arn: str) -> Event:
    attributes = message.get("MessageAttributes", {})
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {
            name: {
                "stringValue": value["StringValue"],
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": value["DataType"],
            }
            for name, value in attributes.items()
        },
        "md5OfBody": message.get("MD5OfBody", ""),
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": arn.split(":")[3],
    }


def as_json(event: Event) -> Event:
    """An event as JSON passes it to a function: bytes as base64, times as seconds."""

    def plain(value: Any) -> Any:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value.timestamp()

    decoded: Event = json.loads(json.dumps(event, default=plain))
    return decoded
