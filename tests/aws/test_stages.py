"""Several installations in one account: none uses the resources of another."""

import asyncio
import json

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.task_queue import SqsTaskQueue
from longshore.core.tasks.states import Priority
from longshore.testing.clock import FakeClock
from tests.aws.stand_in import stand_in


async def _send_dead_letter(aws: AwsClient, names: Names, queue: str) -> None:
    created = await aws.call(
        "sqs",
        "create_queue",
        QueueName=names.dead_letter_queue(queue, Priority.NORMAL),
        Attributes={},
    )
    body = json.dumps({"stage": names.stage, "queue": queue})
    await aws.call("sqs", "send_message", QueueUrl=created["QueueUrl"], MessageBody=body)


def test_dead_letters_of_every_queue_are_those_of_this_stage_alone() -> None:
    """Stages have no dash in their names (see the settings), and queues may have."""
    name = stand_in().new_stage()
    ours, longer = Names(stage=name, bucket=""), Names(stage=f"{name}eu", bucket="")

    async def scenario() -> set[tuple[str, str]]:
        aws = AwsClient(stand_in().client_options)
        for names in (ours, longer):
            for queue in ("eu", "eu-night-shift", "dead"):
                await _send_dead_letter(aws, names, queue)
        letters = await SqsTaskQueue(aws, ours, FakeClock()).dead_letters(None, limit=100)
        await aws.close()
        return {(letter.queue, json.loads(letter.body)["stage"]) for letter in letters}

    result = asyncio.run(scenario())

    assert result == {("eu", name), ("eu-night-shift", name), ("dead", name)}
