"""Trouble on the wire: what leaves the client library does not arrive, or its answer does not.

Below everything of ours, so that the library's own tries and ``calls`` are under test as well.
Where a call was made is told by the nearest function of an adapter on the stack, so that each of
them can be given each trouble.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

import longshore.adapters.aws
from longshore.adapters.aws.calls import Answer, AwsPlace
from longshore.testing.clock import FakeClock
from tests.aws.whole import TellingAws
from tests.unit.services.patience import PatientLoop

ADAPTERS = str(Path(longshore.adapters.aws.__path__[0]))
# Through which others make their calls: the caller of these is what counts, if it is there.
WAYS_OUT = ("calls", "tables", "queue_calls", "queue_batches", "house")
SHORTCUTS = ("_call", "_dynamo")
LONG = timedelta(seconds=8)
THROTTLED = {
    "dynamodb": "ProvisionedThroughputExceededException",
    "sqs": "RequestThrottled",
    "events": "ThrottlingException",
    "s3": "SlowDown",
}


class Trouble(StrEnum):
    """What can happen to a call; of a batch, what can happen to a part of it."""

    THROTTLED = "throttled"
    BROKEN_BEFORE = "500 before it is done"
    BROKEN_AFTER = "500 after it is done"
    BROKEN_ONCE = "500 after it is done, and the library asks again"
    TIMED_OUT = "no answer comes"
    RESET = "the connection is reset"
    PARTLY = "a part of a batch fails"
    SLOW = "the answer takes long"


class Site(NamedTuple):
    """Where calls are made."""

    service: str
    operation: str
    where: str  # module:function

    def __str__(self) -> str:
        return f"{self.service}.{self.operation} in {self.where}"


BATCHES = {
    *("send_message_batch", "delete_message_batch", "change_message_visibility_batch"),
    *("put_events", "batch_get_item"),
}
Send = Callable[[Any], Awaitable[Any]]
Plan = Callable[[Site], Trouble | None]
_CALL: ContextVar[tuple[Site, int]] = ContextVar("_CALL")


def may_meet(site: Site) -> list[Trouble]:
    """What can happen to calls of this site."""
    return [one for one in Trouble if one is not Trouble.PARTLY or site.operation in BATCHES]


def any_of(turn: int) -> Plan:
    """Some trouble for every site, and another one in another turn."""

    def plan(site: Site) -> Trouble:
        troubles = may_meet(site)
        return troubles[(crc32(str(site).encode()) + turn) % len(troubles)]

    return plan


class TroubledAws(TellingAws):
    """AWS as it is, but for one call of each site that is to meet trouble.

    Args:
        plan: What one of the calls of a site meets.
        which: Which of the calls of a site, from 0 on.
    """

    def __init__(
        self,
        place: AwsPlace,
        clock: FakeClock,
        plan: Plan = lambda _: None,
        which: int = 0,
    ) -> None:
        super().__init__(place, clock)
        self._plan = plan
        self._which = which
        self.made: Counter[Site] = Counter()
        self.met: dict[Site, Trouble] = {}
        self._tapped: set[str] = set()
        self._sent: Counter[tuple[Site, int]] = Counter()

    async def call(self, service: str, operation: str, **given: Any) -> Answer:
        site = Site(service, operation, _where())
        _CALL.set((site, self.made[site]))
        self.made[site] += 1
        return await super().call(service, operation, **given)

    async def client(self, service: str) -> Any:
        client = await super().client(service)
        if service not in self._tapped:
            self._tapped.add(service)
            session = client._endpoint.http_session
            send: Send = session.send
            session.send = lambda request: self._send(send, request)
        return client

    async def _send(self, send: Send, request: Any) -> Any:
        site, number = _CALL.get()
        trouble = self._plan(site)
        if trouble is None or number != self._which:
            return await send(request)
        self._sent[site, number] += 1
        if trouble is Trouble.BROKEN_ONCE and self._sent[site, number] > 1:
            return await send(request)
        self.met[site] = trouble
        return await self._troubled(trouble, site, send, request)

    async def _troubled(self, trouble: Trouble, site: Site, send: Send, request: Any) -> Any:
        match trouble:
            case Trouble.THROTTLED:
                status = 503 if site.service == "s3" else 400
                return _error(request, status, THROTTLED[site.service])
            case Trouble.BROKEN_BEFORE:
                return _error(request, 500, "InternalServerError")
            case Trouble.BROKEN_AFTER | Trouble.BROKEN_ONCE:
                await _whole(await send(request))
                return _error(request, 500, "InternalServerError")
            case Trouble.TIMED_OUT:
                await _whole(await send(request))
                raise ReadTimeoutError(endpoint_url=request.url)
            case Trouble.RESET:
                raise ConnectionClosedError(endpoint_url=request.url)
            case Trouble.SLOW:
                await self._passes(LONG)
                answer = await send(request)
                await self._passes(LONG)
                return answer
            case Trouble.PARTLY:
                return await _partly(site.operation, send, request)

    async def _passes(self, duration: timedelta) -> None:
        """On the story's clock, which goes on only while nobody has anything in hand."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PatientLoop)
        loop.end()
        try:
            await self._clock.sleep(duration)
        finally:
            loop.begin()


def _where() -> str:
    """The function of an adapter that makes a call."""
    found = ""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(ADAPTERS):
            module = Path(path).stem
            name = frame.f_code.co_name
            if not name.startswith("<"):  # what is written in another function counts as its own
                found = f"{module}:{name}"
                if module not in WAYS_OUT and name not in SHORTCUTS:
                    return found
        frame = frame.f_back  # type: ignore[assignment]
    return found or "nobody"


class _Raw:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


def _answer(request: Any, status: int, body: bytes) -> AioAWSResponse:
    return AioAWSResponse(request.url, status, {"content-length": str(len(body))}, _Raw(body))


def _error(request: Any, status: int, code: str) -> AioAWSResponse:
    if "X-Amz-Target" in request.headers:
        return _answer(request, status, json.dumps({"__type": code, "message": ""}).encode())
    body = f"<Error><Code>{code}</Code><Message/></Error>" if request.method != "HEAD" else ""
    return _answer(request, status, body.encode())


async def _whole(response: Any) -> bytes:
    body: bytes = await response.content
    return body


async def _partly(operation: str, send: Send, request: Any) -> Any:
    """The last entry is left out, and the answer says that it was not done."""
    asked = json.loads(request.body)
    if operation == "batch_get_item":
        ((table, keys),) = asked["RequestItems"].items()
        left = {table: {**keys, "Keys": keys["Keys"][-1:]}}
        keys["Keys"] = keys["Keys"][:-1]
        entries, answer = keys["Keys"], {"Responses": {table: []}, "UnprocessedKeys": left}
    else:
        failed = asked["Entries"].pop()
        entries = asked["Entries"]
        answer = {"Successful": [], "Failed": [], "Entries": [], "FailedEntryCount": 0}
    if entries:
        request.body = json.dumps(asked).encode()
        request.headers["Content-Length"] = str(len(request.body))
        answer |= json.loads(await _whole(await send(request)))
    if operation == "batch_get_item":
        answer["UnprocessedKeys"] = left
    elif operation == "put_events":
        answer["FailedEntryCount"] = 1
        answer["Entries"] = [*answer["Entries"], {"ErrorCode": "InternalFailure"}]
    else:
        code = {"Id": failed["Id"], "Code": "InternalError", "SenderFault": False}
        answer["Failed"] = [*answer.get("Failed", ()), code]
    return _answer(request, 200, json.dumps(answer).encode())
