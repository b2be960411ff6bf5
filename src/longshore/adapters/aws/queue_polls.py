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
from longshore.adapters.aws.queue_batches import BATCH
from longshore.adapters.aws.queue_calls import Sqs
from longshore.adapters.aws.queue_messages import (
    ATTRIBUTES,
    HIDE_LIMIT,
    SYSTEM_ATTRIBUTES,
    Lane,
    Received,
    entry_again,
    received,
    whole_seconds,
)
from longshore.core.limits import RECEIVE_LIMIT
from longshore.errors import BackendError, BackendRejected
from longshore.ports.clock import Clock

logger = logging.getLogger(__name__)

LONGEST_POLL_S = 20
EMPTY_FOR = timedelta(seconds=2)
"""A lane on which nothing was found is passed over for so long, while others have something."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Ask:
    """A receive that is under way."""

    lanes: Sequence[Lane]
    limit: int
    hidden_s: int
    taken: list[Received] = field(default_factory=list)
    trouble: BackendError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def room(self) -> int:
        return self.limit - len(self.taken)

    def wants(self, lane: Lane, hidden_s: int) -> bool:
        return self.room > 0 and lane in self.lanes and self.hidden_s == hidden_s


class Polls:
    """The receives of one process, and the polls that serve them."""

    def __init__(self, sqs: Sqs, names: Names, clock: Clock) -> None:
        self._sqs = sqs
        self._names = names
        self._clock = clock
        self._asks: dict[_Ask, None] = {}  # who came first is served first
        self._listening: dict[tuple[Lane, int], asyncio.Task[int]] = {}
        self._returning: dict[asyncio.Task[None], Lane] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._empty_until: dict[Lane, timedelta] = {}
        self._closing = False

    async def receive(
        self, lanes: Sequence[Lane], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Received]:
        """Up to ``limit`` messages of these lanes, the first lane's first; see the port."""
        if limit <= 0:
            return []
        end = self._clock.elapsed() + wait
        # What was just brought for nobody is seen again as soon as this is done.
        if on_its_way := [task for task, lane in self._returning.items() if lane in lanes]:
            await asyncio.wait(on_its_way)
        hidden_s = whole_seconds(min(hidden_for, HIDE_LIMIT))
        ask = _Ask(lanes=lanes, limit=limit, hidden_s=hidden_s)
        self._asks[ask] = None
        try:
            await self._look(ask, everywhere=wait <= timedelta(0))
            if not ask.taken and wait > timedelta(0):
                await self._listen(ask, end)
        except BackendError as error:
            if not ask.taken:
                raise
            logger.warning("queue.partly_received", extra={"error": str(error)})
        except BaseException:
            self._give_back(ask.taken)
            raise
        finally:
            del self._asks[ask]
        return ask.taken

    def rung(self, lane: Lane) -> None:
        """Something was sent to a lane: it is not empty any more."""
        self._empty_until.pop(lane, None)

    async def close(self) -> None:
        """Wait for the polls that are out, which takes 20 s at most, and give back what they bring.

        A process that is killed in between loses nothing: what a poll took for it is seen again
        when its time is over, counted as received once.
        """
        self._closing = True
        for ask in self._asks:
            ask.changed.set()
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _look(self, ask: _Ask, *, everywhere: bool) -> None:
        """Take what is there now, lane by lane; all of them only if nobody is to listen after."""
        passed_over = []
        refusal: BackendRejected | None = None
        for lane in ask.lanes:
            if self._thought_empty(lane):
                passed_over.append(lane)
                continue
            try:
                await self._draw(ask, lane)
            except BackendRejected as error:
                refusal = error  # of this lane alone: the others may well have something
        if refusal is not None:
            raise refusal
        if everywhere and not ask.taken:
            for lane in passed_over:
                await self._draw(ask, lane)

    async def _draw(self, ask: _Ask, lane: Lane) -> None:
        while ask.room > 0:
            size = min(BATCH, ask.room)
            poll = self._start(self._poll(lane, size, ask.hidden_s, wait_s=0, first=ask))
            if await asyncio.shield(poll) < size:
                return

    def _thought_empty(self, lane: Lane) -> bool:
        """Nothing was found there a moment ago, or a long poll has found nothing yet."""
        until = self._empty_until.get(lane, timedelta(0))
        return until > self._clock.elapsed() or any(lane == out for out, _ in self._listening)

    async def _listen(self, ask: _Ask, end: timedelta) -> None:
        """Wait for the first message on any of the lanes."""
        ask.trouble = None
        timer = asyncio.ensure_future(self._clock.sleep(end - self._clock.elapsed()))
        timer.add_done_callback(lambda _: ask.changed.set())
        try:
            while not ask.taken and not self._closing:
                left = end - self._clock.elapsed()
                if left <= timedelta(0):
                    return
                ask.changed.clear()
                for lane in ask.lanes:
                    self._listen_on(lane, ask.hidden_s, left)
                await ask.changed.wait()
                if ask.trouble is not None:
                    raise ask.trouble
        finally:
            timer.cancel()

    def _listen_on(self, lane: Lane, hidden_s: int, left: timedelta) -> None:
        if (lane, hidden_s) in self._listening:
            return
        wanted = sum(ask.room for ask in self._asks if ask.wants(lane, hidden_s))
        wait_s = min(LONGEST_POLL_S, whole_seconds(left))
        polling = self._poll(lane, min(BATCH, wanted), hidden_s, wait_s=wait_s)
        poll = self._start(polling)
        self._listening[lane, hidden_s] = poll
        poll.add_done_callback(lambda _: self._heard(lane, hidden_s, poll))

    def _heard(self, lane: Lane, hidden_s: int, poll: asyncio.Task[int]) -> None:
        del self._listening[lane, hidden_s]
        error = None if poll.cancelled() else poll.exception()
        for ask in self._asks:
            if lane in ask.lanes:
                if isinstance(error, BackendError):
                    ask.trouble = error
                ask.changed.set()

    async def _poll(
        self, lane: Lane, limit: int, hidden_s: int, *, wait_s: int, first: _Ask | None = None
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
        found = [received(raw, lane, asked_at) for raw in answer.get("Messages", ())]
        if not found:
            self._empty_until[lane] = self._clock.elapsed() + EMPTY_FOR
            return 0
        self.rung(lane)
        now = self._clock.now()
        early = [one for one in found if one.early_by(now) is not None]
        due = [one for one in found if one not in early]
        worn_out = [one for one in due if one.receives > RECEIVE_LIMIT]
        self._hand_out(lane, hidden_s, [one for one in due if one not in worn_out], first)
        await self._hide_again(lane, early)
        await self._bury(lane, worn_out)
        return len(found)

    def _hand_out(
        self, lane: Lane, hidden_s: int, found: Iterable[Received], first: _Ask | None
    ) -> None:
        surplus = []
        asks = [ask for ask in self._asks if ask is first]
        asks += [ask for ask in self._asks if ask is not first]
        for one in found:
            ask = next((ask for ask in asks if ask.wants(lane, hidden_s)), None)
            if ask is None:
                surplus.append(one)
            else:
                ask.taken.append(one)
                ask.changed.set()
        self._give_back(surplus)

    def _give_back(self, messages: Sequence[Received]) -> None:
        """As if they had not been received: sent again, for SQS does not count back."""
        for lane in {one.lane for one in messages}:
            task = self._start(self._return(lane, [one for one in messages if one.lane == lane]))
            self._returning[task] = lane
            task.add_done_callback(self._returning.pop)

    async def _return(self, lane: Lane, messages: Sequence[Received]) -> None:
        now = self._clock.now()
        again = [(one, entry_again(one, now, receives=one.receives - 1)) for one in messages]
        await self._sqs.replace(self._names.queue(*lane), again)
        self.rung(lane)

    async def _hide_again(self, lane: Lane, early: Sequence[Received]) -> None:
        """Messages for later than SQS can delay: twelve hours at a time, then sent again.

        What fails here is seen again soon, and comes by here again.
        """
        now = self._clock.now()
        to_hide, to_send = [], []
        for one in early:
            wait = one.early_by(now) or timedelta(0)
            if one.count == 1:
                to_hide.append((one, whole_seconds(min(wait, HIDE_LIMIT))))
            else:
                # So one life of a message has one early receive at most, which can be told later.
                entry = entry_again(one, now, receives=one.receives_before, visible_at=now + wait)
                to_send.append((one, entry))
        name = self._names.queue(*lane)
        await self._sqs.hide(name, to_hide)
        await self._sqs.replace(name, to_send)

    async def _bury(self, lane: Lane, worn_out: Sequence[Received]) -> None:
        """SQS does it for messages that it has counted alone, and not for those sent again."""
        now = self._clock.now()
        entries = [(one, entry_again(one, now, receives=RECEIVE_LIMIT)) for one in worn_out]
        await self._sqs.replace(self._names.queue(*lane), entries, to=self._names.dead(*lane))

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waits for it is told; perhaps nobody does any more.
            logger.debug("queue.poll_failed", extra={"error": str(error)})
