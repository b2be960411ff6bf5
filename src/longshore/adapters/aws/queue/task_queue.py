"""The queue on SQS: a standard queue for each name and priority, and one for its dead letters.

**What is sent.** Messages travel in batches of ten. One for later is delayed by SQS, fifteen
minutes at most; beyond that it carries its moment, and whoever receives it early hides it again,
twelve hours at a time, and sends it again after that. What is hidden so is in flight to SQS, which
allows about 120,000 such messages a queue and hands out nothing when there are more. A key is not
looked at: two messages of one key stay two.

**What is received.** Older first within a lane is what SQS tries, not what it promises. A lane that
was found empty is passed over for two seconds while others have something. So with everything busy
a task costs one send, one receive and one delete, or a tenth of each where ten go together, and
each empty lane one request in two seconds. An idle worker has one long poll of 20 s out for each
lane: 540 requests an hour for each queue that it serves (about 0.16 dollars a month), however many
tasks it could run. To put a message off is to send it again and remove the old one: two requests.

**What a receipt is worth.** SQS says that a message was removed also when the receipt is an old one
or the message is gone. A process knows what it has received itself and still hides, and removes
that straight away. All else is hidden once more before it is removed or sent again, which SQS
refuses for a handle that is not current: one request more. What cannot be known on AWS: whether
another process has removed the message with the same receipt meanwhile. And contrary to the port
SQS may call a receipt not current from the end of its time on, not from the next delivery on; its
message stays, and is delivered again.

No message stays hidden for more than twelve hours after its receive. From then on its receipt is
not current. Whoever works on the task goes on under its lease; who is given the message meanwhile
puts it off, and should it get lost on the way, the sweeper rings again.

**When an answer is lost.** A send is made again: the message may be doubled and is not lost. To
hide or to remove says the same when it is said twice. A receive leaves its messages hidden for
their time; they come again, counted once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.dead_letters import SqsDeadLetters
from longshore.adapters.aws.queue.messages import Lane, new_entry
from longshore.adapters.aws.queue.poller import Poller
from longshore.adapters.aws.queue.receipts import Receipts
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.core.queues import LOW_EVERY, QueueDepth, lane_order
from longshore.core.tasks.states import Priority
from longshore.errors import BackendRejected
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message, OutgoingMessage

logger = logging.getLogger(__name__)


class SqsTaskQueue:
    """See ``ports.queue.TaskQueue``. To be closed when nobody receives any more."""

    def __init__(self, aws: AwsClient, names: Names, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._sqs = SqsClient(aws, clock)
        self._poller = Poller(self._sqs, names, clock)
        self._receipts = Receipts(self._sqs, names, clock)
        self._dead_letters = SqsDeadLetters(self._sqs, names, clock)
        self._turns = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the polls that are out, 20 s at most, and give back what they bring."""
        await self._poller.close()

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        now = self._clock.now()
        lanes: dict[Lane, list[int]] = {}
        for number, outgoing in enumerate(messages):
            lanes.setdefault((outgoing.queue, outgoing.priority), []).append(number)

        async def send_on(lane: Lane, numbers: Sequence[int]) -> list[str | None] | BackendRejected:
            entries = [new_entry(messages[number], now) for number in numbers]
            try:
                return await self._sqs.send(self._names.queue(*lane), entries)
            except BackendRejected as error:
                return error
            finally:
                self._poller.clear_empty(lane)

        answers = await asyncio.gather(*(send_on(*each) for each in lanes.items()))
        refusals = [answer for answer in answers if isinstance(answer, BackendRejected)]
        if refusals and len(refusals) == len(answers):
            raise refusals[0]
        for refusal in refusals:
            # The others were sent, and that must not be hidden by an error.
            logger.error("queue.send_rejected", extra={"error": str(refusal)})
        unsent: set[int] = set()
        for numbers, answer in zip(lanes.values(), answers, strict=True):
            codes = [str(answer)] * len(numbers) if isinstance(answer, BackendRejected) else answer
            unsent |= {number for number, code in zip(numbers, codes, strict=True) if code}
        return [message for number, message in enumerate(messages) if number in unsent]

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        turn = lane_order(self._turns)
        found = await self._poller.receive(
            self._lane_order(queues), limit=limit, hidden_for=hidden_for, wait=wait
        )
        if found:
            self._turns += 1
        self._receipts.record_received(found, hidden_for)
        found.sort(key=lambda one: (turn.index(one.lane[1]), one.sent_us))
        return [one.message for one in found]

    def _lane_order(self, queues: Sequence[str]) -> list[Lane]:
        """The lanes as this turn has them, queues turn about within a priority.

        Each queue comes first in each kind of turn sooner or later, also where the number of queues
        and the turns of a kind would meet the same one again and again.
        """
        queues = list(dict.fromkeys(queues))
        first = (self._turns // LOW_EVERY + self._turns % LOW_EVERY) % max(len(queues), 1)
        order = [*queues[first:], *queues[:first]]
        return [(queue, priority) for priority in lane_order(self._turns) for queue in order]

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        return await self._receipts.extend(receipts, hidden_for=hidden_for)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        return await self._receipts.delete(receipts)

    async def delay(self, receipt: str, *, until: datetime) -> None:
        self._poller.clear_empty(await self._receipts.delay(receipt, until=until))

    async def depth(self, queue: str) -> QueueDepth:
        alive = await asyncio.gather(
            *(self._sqs.counts(self._names.queue(queue, each)) for each in Priority)
        )
        dead = await asyncio.gather(
            *(self._sqs.counts(self._names.dead_letter_queue(queue, each)) for each in Priority)
        )
        return QueueDepth(
            ready=sum(each.visible for each in alive),
            hidden=sum(each.hidden for each in alive),
            dead_letters=sum(each.visible + each.hidden for each in dead),
        )

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        return await self._dead_letters.read(queue, limit=limit)

    async def delete_dead_letter(self, message_id: str) -> bool:
        return await self._dead_letters.drop(message_id)
