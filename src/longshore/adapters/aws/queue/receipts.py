"""What is done with a receipt: hide its message for longer, remove it, put it off.

See ``queue`` for what SQS tells of receipts, and what it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.batcher import UNANSWERED
from longshore.adapters.aws.queue.messages import (
    HIDE_LIMIT,
    Lane,
    ReceivedMessage,
    parse_receipt,
    resend_entry,
    whole_seconds,
)
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.errors import BackendUnavailable, NotDeployed, ReceiptExpired
from longshore.ports.clock import Clock

_NOT_CURRENT = "not current"
_VERIFY_VISIBILITY_S = 30
# How long an answer is on its way to us, as a rule: a long poll may have been out for longer.
_RESPONSE_LATENCY = timedelta(seconds=5)
_CLEAN_UP_AT = 1000
_SECOND = timedelta(seconds=1)

# By receipt: None of one with which it was done, else why not.
_ReceiptResults = dict[str, str | None]
_LaneOperation = Callable[[str, Sequence[str]], Awaitable[Sequence[str | None]]]


class Receipts:
    """The receipts of one process, and those of others that it is given."""

    def __init__(self, sqs: SqsClient, names: Names, clock: Clock) -> None:
        self._sqs = sqs
        self._names = names
        self._clock = clock
        # Until when, on `elapsed`, nobody else can have received the message.
        self._hidden_until: dict[str, timedelta] = {}
        self._clean_up_at = _CLEAN_UP_AT

    def record_received(self, messages: Sequence[ReceivedMessage], hidden_for: timedelta) -> None:
        """This process has received messages, just now."""
        hidden_for = min(hidden_for, HIDE_LIMIT)
        for message in messages:
            under_way = max(self._clock.now() - message.requested_at, timedelta(0))
            self._record_hidden(message.receipt, hidden_for - min(under_way, _RESPONSE_LATENCY))

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        """See ``ports.queue.TaskQueue``; not beyond twelve hours after the receive."""
        now = self._clock.now()
        messages, fates = _parse_receipts(receipts)
        seconds: dict[str, int] = {}
        for receipt, message in messages.items():
            left = (message.max_hidden_until - now) // _SECOND
            seconds[receipt] = min(whole_seconds(hidden_for), max(left, 0))
            if left <= 0:
                fates[receipt] = _NOT_CURRENT
        current = {receipt: one for receipt, one in messages.items() if receipt not in fates}

        async def hide(name: str, some: Sequence[str]) -> Sequence[str | None]:
            return await self._sqs.hide(name, [(messages[one], seconds[one]) for one in some])

        fates |= await self._by_lane(current, hide)
        for receipt, fate in fates.items():
            self._hidden_until.pop(receipt, None)
            if fate is None:
                self._record_hidden(receipt, seconds[receipt] * _SECOND)
        return _stale(receipts, fates)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """See ``ports.queue.TaskQueue``."""
        messages, fates = _parse_receipts(receipts)
        fates |= await self._verify(
            {receipt: one for receipt, one in messages.items() if not self._is_hidden(receipt)}
        )
        current = {receipt: one for receipt, one in messages.items() if not fates.get(receipt)}
        for receipt in current:
            self._hidden_until.pop(receipt, None)

        async def remove(name: str, some: Sequence[str]) -> Sequence[str | None]:
            return await self._sqs.delete(name, [messages[one] for one in some])

        fates |= await self._by_lane(current, remove)
        return _stale(receipts, fates)

    async def delay(self, receipt: str, *, until: datetime) -> Lane:
        """See ``ports.queue.TaskQueue``; on which lane the message will be seen."""
        messages, fates = _parse_receipts([receipt])
        if messages and not self._is_hidden(receipt):
            fates |= await self._verify(messages)
        if fates and _stale([receipt], fates):
            raise ReceiptExpired(receipt)
        message = messages[receipt]
        again = resend_entry(
            message, self._clock.now(), receive_count=message.receive_count - 1, visible_at=until
        )
        name = self._names.queue(*message.lane)
        if not all(await self._sqs.replace(name, [(message, again)])):
            text = f"{name}: a message could not be sent again to put it off"
            raise BackendUnavailable(text)
        self._hidden_until.pop(receipt, None)
        return message.lane

    def _record_hidden(self, receipt: str, duration: timedelta) -> None:
        now = self._clock.elapsed()
        self._hidden_until[receipt] = now + duration
        if len(self._hidden_until) >= self._clean_up_at:
            # What was never deleted, because its worker died or was too late.
            self._hidden_until = {
                each: until for each, until in self._hidden_until.items() if until > now
            }
            self._clean_up_at = max(_CLEAN_UP_AT, 2 * len(self._hidden_until))

    def _is_hidden(self, receipt: str) -> bool:
        return self._hidden_until.get(receipt, timedelta(0)) > self._clock.elapsed()

    async def _verify(self, messages: Mapping[str, ReceivedMessage]) -> _ReceiptResults:
        """Which of the receipts are current, as far as SQS tells; those are hidden for a while."""

        async def hide(name: str, some: Sequence[str]) -> Sequence[str | None]:
            return await self._sqs.hide(
                name, [(messages[one], _VERIFY_VISIBILITY_S) for one in some]
            )

        return await self._by_lane(messages, hide)

    async def _by_lane(
        self, messages: Mapping[str, ReceivedMessage], work: _LaneOperation
    ) -> _ReceiptResults:
        by_lane: dict[Lane, list[str]] = {}
        for receipt, message in messages.items():
            by_lane.setdefault(message.lane, []).append(receipt)
        parts = await asyncio.gather(
            *(self._on_lane(lane, some, work) for lane, some in by_lane.items())
        )
        return {receipt: fate for part in parts for receipt, fate in part.items()}

    async def _on_lane(
        self, lane: Lane, receipts: Sequence[str], work: _LaneOperation
    ) -> _ReceiptResults:
        try:
            codes = await work(self._names.queue(*lane), receipts)
        except NotDeployed:
            # A queue that is gone, or that never was: no message of it can be current.
            return dict.fromkeys(receipts, _NOT_CURRENT)
        return dict(zip(receipts, codes, strict=True))


def _parse_receipts(receipts: Sequence[str]) -> tuple[dict[str, ReceivedMessage], _ReceiptResults]:
    """What the receipts say, and those that are none."""
    messages = {receipt: one for receipt in receipts if (one := parse_receipt(receipt))}
    return messages, {receipt: _NOT_CURRENT for receipt in receipts if receipt not in messages}


def _stale(receipts: Sequence[str], results: _ReceiptResults) -> list[str]:
    """Those that are not current, or not known to be.

    Raises:
        BackendUnavailable: nothing is known of any.
    """
    if results and all(fate == UNANSWERED for fate in results.values()):
        raise BackendUnavailable("sqs: no answer for any of the receipts")
    return [receipt for receipt in receipts if results[receipt] is not None]
