"""Receiving from SQS: several lanes, one limit, and no poll that is ever cut off.

SQS hands a message to whoever asked, whether they still listen or not: a poll that is cancelled may
take a message along, unseen until its time is over and counted as received. So polls run by
themselves. What one brings goes to a receive that waits for it; if none does, it goes back as if
it had never been received. A poll that outlives its receive serves the next one, so there is never
more than one long poll for each lane, however often somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.batcher import BATCH_SIZE
from longshore.adapters.aws.queue.messages import (
    ATTRIBUTES,
    HIDE_LIMIT,
    SYSTEM_ATTRIBUTES,
    Lane,
    ReceivedMessage,
    parse_message,
    resend_entry,
    whole_seconds,
)
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.errors import BackendError, BackendRejected
from longshore.ports.clock import Clock

logger = logging.getLogger(__name__)

POLL_LIMIT_S = 20
EMPTY_LANE_PAUSE = timedelta(seconds=2)
"""A lane on which nothing was found is passed over for so long, while others have something."""


@dataclass(eq=False, slots=True, kw_only=True)
class _PendingReceive:
    """A receive that is under way."""

    lanes: Sequence[Lane]
    limit: int
    hidden_s: int
    messages: list[ReceivedMessage] = field(default_factory=list)
    error: BackendError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def remaining(self) -> int:
        return self.limit - len(self.messages)

    def accepts(self, lane: Lane, hidden_s: int) -> bool:
        return self.remaining > 0 and lane in self.lanes and self.hidden_s == hidden_s


class Poller:
    """The receives of one process, and the polls that serve them."""

    def __init__(self, sqs: SqsClient, names: Names, clock: Clock) -> None:
        self._sqs = sqs
        self._names = names
        self._clock = clock
        self._receives: dict[_PendingReceive, None] = {}  # who came first is served first
        self._long_polls: dict[tuple[Lane, int], asyncio.Task[int]] = {}
        self._returns: dict[asyncio.Task[None], Lane] = {}
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._empty_until: dict[Lane, timedelta] = {}
        self._closing = False

    async def receive(
        self, lanes: Sequence[Lane], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[ReceivedMessage]:
        """Up to ``limit`` messages of these lanes, the first lane's first; see the port."""
        if limit <= 0:
            return []
        end = self._clock.elapsed() + wait
        # What was just brought for nobody is seen again as soon as this is done.
        if on_its_way := [task for task, lane in self._returns.items() if lane in lanes]:
            await asyncio.wait(on_its_way)
        hidden_s = whole_seconds(min(hidden_for, HIDE_LIMIT))
        ask = _PendingReceive(lanes=lanes, limit=limit, hidden_s=hidden_s)
        self._receives[ask] = None
        try:
            await self._poll_now(ask, all_lanes=wait <= timedelta(0))
            if not ask.messages and wait > timedelta(0):
                await self._wait_for_message(ask, end)
        except BackendError as error:
            if not ask.messages:
                raise
            logger.warning("queue.partly_received", extra={"error": str(error)})
        except BaseException:
            self._return_messages(ask.messages)
            raise
        finally:
            del self._receives[ask]
        return ask.messages

    def clear_empty(self, lane: Lane) -> None:
        """Something was sent to a lane: it is not empty any more."""
        self._empty_until.pop(lane, None)

    async def close(self) -> None:
        """Wait for the polls that are out, which takes 20 s at most, and give back what they bring.

        A process that is killed in between loses nothing: what a poll took for it is seen again
        when its time is over, counted as received once.
        """
        self._closing = True
        for ask in self._receives:
            ask.changed.set()
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _poll_now(self, receive: _PendingReceive, *, all_lanes: bool) -> None:
        """Take what is there now, lane by lane; all of them only if nobody is to listen after."""
        passed_over = []
        refusal: BackendRejected | None = None
        for lane in receive.lanes:
            if self._presumed_empty(lane):
                passed_over.append(lane)
                continue
            try:
                await self._drain_lane(receive, lane)
            except BackendRejected as error:
                refusal = error  # of this lane alone: the others may well have something
        if refusal is not None:
            raise refusal
        if all_lanes and not receive.messages:
            for lane in passed_over:
                await self._drain_lane(receive, lane)

    async def _drain_lane(self, receive: _PendingReceive, lane: Lane) -> None:
        while receive.remaining > 0:
            size = min(BATCH_SIZE, receive.remaining)
            poll = self._start(
                self._poll(lane, size, receive.hidden_s, wait_s=0, preferred=receive)
            )
            if await asyncio.shield(poll) < size:
                return

    def _presumed_empty(self, lane: Lane) -> bool:
        """Nothing was found there a moment ago, or a long poll has found nothing yet."""
        until = self._empty_until.get(lane, timedelta(0))
        return until > self._clock.elapsed() or any(lane == out for out, _ in self._long_polls)

    async def _wait_for_message(self, receive: _PendingReceive, end: timedelta) -> None:
        """Wait for the first message on any of the lanes."""
        receive.error = None
        timer = asyncio.ensure_future(self._clock.sleep(end - self._clock.elapsed()))
        timer.add_done_callback(lambda _: receive.changed.set())
        try:
            while not receive.messages and not self._closing:
                left = end - self._clock.elapsed()
                if left <= timedelta(0):
                    return
                receive.changed.clear()
                for lane in receive.lanes:
                    self._start_long_poll(lane, receive.hidden_s, left)
                await receive.changed.wait()
                if receive.error is not None:
                    raise receive.error
        finally:
            timer.cancel()

    def _start_long_poll(self, lane: Lane, hidden_s: int, left: timedelta) -> None:
        if (lane, hidden_s) in self._long_polls:
            return
        wanted = sum(ask.remaining for ask in self._receives if ask.accepts(lane, hidden_s))
        wait_s = min(POLL_LIMIT_S, whole_seconds(left))
        polling = self._poll(lane, min(BATCH_SIZE, wanted), hidden_s, wait_s=wait_s)
        poll = self._start(polling)
        self._long_polls[lane, hidden_s] = poll
        poll.add_done_callback(lambda _: self._on_long_poll_done(lane, hidden_s, poll))

    def _on_long_poll_done(self, lane: Lane, hidden_s: int, poll: asyncio.Task[int]) -> None:
        del self._long_polls[lane, hidden_s]
        error = None if poll.cancelled() else poll.exception()
        for ask in self._receives:
            if lane in ask.lanes:
                if isinstance(error, BackendError):
                    ask.error = error
                ask.changed.set()

    async def _poll(
        self,
        lane: Lane,
        limit: int,
        hidden_s: int,
        *,
        wait_s: int,
        preferred: _PendingReceive | None = None,
    ) -> int:
        """Ask SQS once, and bring what it gives to where it belongs; how many there were."""
        asked_at = self._clock.now()
        answer = await self._sqs.call(
            self._names.queue(*lane),
            "receive_message",
            MaxNumberOfMessages=limit,
            VisibilityTimeout=hidden_s,
            WaitTimeSeconds=wait_s,
            MessageAttributeNames=[ATTRIBUTES],
            MessageSystemAttributeNames=list(SYSTEM_ATTRIBUTES),
        )
        found = [parse_message(raw, lane, asked_at) for raw in answer.get("Messages", ())]
        if not found:
            self._empty_until[lane] = self._clock.elapsed() + EMPTY_LANE_PAUSE
            return 0
        self.clear_empty(lane)
        now = self._clock.now()
        early = [one for one in found if one.remaining_delay(now) is not None]
        due = [one for one in found if one not in early]
        worn_out = [one for one in due if one.receive_count > RECEIVE_LIMIT]
        self._distribute(lane, hidden_s, [one for one in due if one not in worn_out], preferred)
        await self._defer_early(lane, early)
        await self._move_to_dead_letters(lane, worn_out)
        return len(found)

    def _distribute(
        self,
        lane: Lane,
        hidden_s: int,
        messages: Iterable[ReceivedMessage],
        preferred: _PendingReceive | None,
    ) -> None:
        surplus = []
        asks = [ask for ask in self._receives if ask is preferred]
        asks += [ask for ask in self._receives if ask is not preferred]
        for one in messages:
            ask = next((ask for ask in asks if ask.accepts(lane, hidden_s)), None)
            if ask is None:
                surplus.append(one)
            else:
                ask.messages.append(one)
                ask.changed.set()
        self._return_messages(surplus)

    def _return_messages(self, messages: Sequence[ReceivedMessage]) -> None:
        """As if they had not been received: sent again, for SQS does not count back."""
        for lane in {one.lane for one in messages}:
            task = self._start(self._resend(lane, [one for one in messages if one.lane == lane]))
            self._returns[task] = lane
            task.add_done_callback(self._returns.pop)

    async def _resend(self, lane: Lane, messages: Sequence[ReceivedMessage]) -> None:
        now = self._clock.now()
        again = [
            (one, resend_entry(one, now, receive_count=one.receive_count - 1)) for one in messages
        ]
        await self._sqs.replace(self._names.queue(*lane), again)
        self.clear_empty(lane)

    async def _defer_early(self, lane: Lane, early: Sequence[ReceivedMessage]) -> None:
        """Messages for later than SQS can delay: twelve hours at a time, then sent again.

        What fails here is seen again soon, and comes by here again.
        """
        now = self._clock.now()
        to_hide, to_send = [], []
        for one in early:
            wait = one.remaining_delay(now) or timedelta(0)
            if one.sqs_receives == 1:
                to_hide.append((one, whole_seconds(min(wait, HIDE_LIMIT))))
            else:
                # So one life of a message has one early receive at most, which can be told later.
                entry = resend_entry(
                    one, now, receive_count=one.earlier_receives, visible_at=now + wait
                )
                to_send.append((one, entry))
        name = self._names.queue(*lane)
        await self._sqs.hide(name, to_hide)
        await self._sqs.replace(name, to_send)

    async def _move_to_dead_letters(self, lane: Lane, exhausted: Sequence[ReceivedMessage]) -> None:
        """SQS does it for messages that it has counted alone, and not for those sent again."""
        now = self._clock.now()
        entries = [(one, resend_entry(one, now, receive_count=RECEIVE_LIMIT)) for one in exhausted]
        await self._sqs.replace(
            self._names.queue(*lane), entries, to=self._names.dead_letter_queue(*lane)
        )

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._in_flight.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waits for it is told; perhaps nobody does any more.
            logger.debug("queue.poll_failed", extra={"error": str(error)})
