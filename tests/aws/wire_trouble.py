"""Trouble on the wire: what leaves the client library does not arrive, or its answer does not.

Below everything of ours, so that the library's own tries and ``calls`` are under test as well. Of
each site (``call_sites``) some calls meet trouble, all tries of the library included.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from zlib import crc32

import aiohttp
from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from longshore.adapters.aws.calls import Answer, AwsPlace
from longshore.testing.clock import FakeClock
from tests.aws.call_sites import Place
from tests.aws.call_tracing import Chain, caller
from tests.aws.whole import TellingAws
from tests.unit.services.patience import PatientLoop

LONG = timedelta(seconds=8)
THROTTLED = {
    "cloudformation": "Throttling",
    "dynamodb": "ProvisionedThroughputExceededException",
    "events": "ThrottlingException",
    "s3": "SlowDown",
    "sqs": "RequestThrottled",
    "ssm": "ThrottlingException",
    "sts": "Throttling",
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
    where: str  # as a ``Place`` is called

    def __str__(self) -> str:
        return f"{self.service}.{self.operation} in {self.where}"


BATCHES = {
    *("send_message_batch", "delete_message_batch", "change_message_visibility_batch"),
    *("put_events", "batch_get_item", "delete_objects"),
}
FAILING = set(Trouble) - {Trouble.BROKEN_ONCE, Trouble.PARTLY, Trouble.SLOW}
"""After which whoever asked once knows nothing, or an error."""

Send = Callable[[Any], Awaitable[Any]]
Plan = Callable[[Site], Trouble | None]
Turns = Callable[[Site], range]
"""Which of the calls of a site, counted from 0 on."""

_CALL: ContextVar[tuple[Site | None, int]] = ContextVar("_CALL", default=(None, 0))


def the_first(_: Site) -> range:
    return range(1)


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
    """AWS as it is, but for some calls of each site that is to meet trouble.

    Args:
        plan: What calls of a site meet.
        turns: Which of its calls do.
    """

    def __init__(
        self,
        place: AwsPlace,
        clock: FakeClock,
        plan: Plan = lambda _: None,
        turns: Turns = the_first,
    ) -> None:
        super().__init__(place, clock)
        self._plan = plan
        self._turns = turns
        self.made: Counter[Site] = Counter()
        self.met: dict[Site, Trouble] = {}
        self.passed: set[Place] = set()
        self.cut_off: set[str] = set()  # keys of blobs whose next answer breaks off half way
        # What a story wants to be true of answers, and answers to what the stand-in cannot do.
        self.amend: Callable[[str, Answer], None] = lambda operation, answer: None
        self.stands_for: dict[str, bytes] = {}
        self.stood_for: Counter[str] = Counter()
        self._tapped: set[str] = set()
        self._sent: Counter[tuple[Site, int]] = Counter()

    def call(self, service: str, operation: str, **given: Any) -> Coroutine[Any, Any, Answer]:
        """A function and no coroutine: who makes a call is seen while it is being made."""
        return self._called(caller(), service, operation, given)

    async def _called(
        self, chain: Chain, service: str, operation: str, given: dict[str, Any]
    ) -> Answer:
        self.note(chain, service, operation)
        answer = await super().call(service, operation, **given)
        if operation == "get_object" and given["Key"] in self.cut_off and "Range" not in given:
            self.cut_off.discard(given["Key"])
            answer["Body"] = _CutOff(answer["Body"])
        self.amend(operation, answer)
        return answer

    def note(self, chain: Chain, service: str, operation: str) -> tuple[Site | None, int]:
        """A call is made, in this context; which one of its site it is."""
        site, number = None, 0
        if chain:  # otherwise it is the test itself
            site = Site(service, operation, str(chain[0]))
            number = self.made[site]
            self.made[site] += 1
            self.passed.update(chain)
        _CALL.set((site, number))
        return site, number

    def planned(self, site: Site | None, number: int) -> Trouble | None:
        """What this call meets, at this try of the library."""
        trouble = self._plan(site) if site else None
        if site is None or trouble is None or number not in self._turns(site):
            return None
        self._sent[site, number] += 1
        if trouble is Trouble.BROKEN_ONCE and self._sent[site, number] > 1:
            return None
        self.met[site] = trouble
        return trouble

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
        trouble = self.planned(site, number)
        if site is not None and site.operation in self.stands_for:
            send = self._standing_for(site.operation)
        if site is None or trouble is None:
            return await send(request)
        return await self._troubled(trouble, site, send, request)

    def _standing_for(self, operation: str) -> Send:
        async def send(request: Any) -> Any:
            self.stood_for[operation] += 1
            return _answer(request, 200, self.stands_for[operation])

        return send

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


# What comes instead of an answer ------------------------------------------------------------------


class _CutOff:
    """A body that breaks off after its first bytes."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._read = False

    async def read(self, amount: int) -> bytes:
        if self._read:
            raise aiohttp.ClientPayloadError
        self._read = True
        piece: bytes = await self._body.read(min(amount, 10))
        return piece

    def close(self) -> None:
        self._body.close()


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
    if "s3" not in str(request.headers.get("Authorization", "")):
        body = f"<ErrorResponse>{body}</ErrorResponse>"
    return _answer(request, status, body.encode())


async def _whole(response: Any) -> bytes:
    body: bytes = await response.content
    return body


async def _partly(operation: str, send: Send, request: Any) -> Any:
    """The last entry is left out, and the answer says that it was not done."""
    if operation == "delete_objects":
        key = re.findall(rb"<Key>([^<]*)</Key>", request.body)[-1].decode()
        told = f"<Error><Key>{key}</Key><Code>InternalError</Code><Message/></Error>"
        return _answer(request, 200, f"<DeleteResult>{told}</DeleteResult>".encode())
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
