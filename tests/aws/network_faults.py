"""Faults of the network: a request of the client library does not arrive, or its response does not.

Faults are injected below all our code, so that the library's own retries are tested as well. They
apply to some calls of each site (``call_sites``), including all retries of the library.
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

from longshore.adapters.aws.client import AwsClientOptions, AwsResponse
from longshore.testing.clock import FakeClock
from tests.aws.call_sites import CallSite
from tests.aws.call_tracing import Chain, calling_sites
from tests.aws.full_backend import LoopAwareAws
from tests.unit.services.virtual_time import IdleAwareLoop

SLOW_RESPONSE = timedelta(seconds=8)
THROTTLING_CODES = {
    "cloudformation": "Throttling",
    "dynamodb": "ProvisionedThroughputExceededException",
    "events": "ThrottlingException",
    "s3": "SlowDown",
    "sqs": "RequestThrottled",
    "ssm": "ThrottlingException",
    "sts": "Throttling",
}


class NetworkFault(StrEnum):
    """A fault of a call, or of a part of a batch."""

    THROTTLED = "throttled"
    ERROR_BEFORE = "500 before it is done"
    ERROR_AFTER = "500 after it is done"
    ERROR_AFTER_ONCE = "500 after it is done, and the library asks again"
    TIMED_OUT = "no answer comes"
    RESET = "the connection is reset"
    PARTIAL = "a part of a batch fails"
    SLOW = "the answer takes long"


class CallSiteOperation(NamedTuple):
    """Where calls are made."""

    service: str
    operation: str
    where: str  # as a ``CallSite`` is called

    def __str__(self) -> str:
        return f"{self.service}.{self.operation} in {self.where}"


BATCH_OPERATIONS = {
    *("send_message_batch", "delete_message_batch", "change_message_visibility_batch"),
    *("put_events", "batch_get_item", "delete_objects"),
}
FAILING_FAULTS = set(NetworkFault) - {
    NetworkFault.ERROR_AFTER_ONCE,
    NetworkFault.PARTIAL,
    NetworkFault.SLOW,
}
"""Faults after which a caller that does not retry gets an error."""

Send = Callable[[Any], Awaitable[Any]]
FaultPlan = Callable[[CallSiteOperation], NetworkFault | None]
CallNumbers = Callable[[CallSiteOperation], range]
"""Which of the calls of a site, counted from 0 on."""

_CALL: ContextVar[tuple[CallSiteOperation | None, int]] = ContextVar("_CALL", default=(None, 0))


def first_call(_: CallSiteOperation) -> range:
    return range(1)


def possible_faults(site: CallSiteOperation) -> list[NetworkFault]:
    """What can happen to calls of this site."""
    return [
        item
        for item in NetworkFault
        if item is not NetworkFault.PARTIAL or site.operation in BATCH_OPERATIONS
    ]


def rotating_faults(offset: int) -> FaultPlan:
    """One fault for every site, and a different one for each offset."""

    def plan(site: CallSiteOperation) -> NetworkFault:
        faults = possible_faults(site)
        return faults[(crc32(str(site).encode()) + offset) % len(faults)]

    return plan


class FaultInjectingAws(LoopAwareAws):
    """A client that injects faults into some calls of each planned site.

    Args:
        plan: The fault for the calls of a site.
        call_numbers: Which of its calls get the fault.
    """

    def __init__(
        self,
        options: AwsClientOptions,
        clock: FakeClock,
        plan: FaultPlan = lambda _: None,
        call_numbers: CallNumbers = first_call,
    ) -> None:
        super().__init__(options, clock)
        self._plan = plan
        self._call_numbers = call_numbers
        self.calls: Counter[CallSiteOperation] = Counter()
        self.injected: dict[CallSiteOperation, NetworkFault] = {}
        self.sites: set[CallSite] = set()
        self.truncated_blobs: set[str] = (
            set()
        )  # keys of blobs whose next answer breaks off half way
        # Changes that a scenario makes to responses, and responses that the stand-in cannot give.
        self.amend_response: Callable[[str, AwsResponse], None] = lambda operation, answer: None
        self.canned_responses: dict[str, bytes] = {}
        self.canned_counts: Counter[str] = Counter()
        self._patched_services: set[str] = set()
        self._sent: Counter[tuple[CallSiteOperation, int]] = Counter()

    def call(
        self, service: str, operation: str, **parameters: Any
    ) -> Coroutine[Any, Any, AwsResponse]:
        """Not a coroutine: the caller's frame is needed while the call is made."""
        return self._call_traced(calling_sites(), service, operation, parameters)

    async def _call_traced(
        self, chain: Chain, service: str, operation: str, parameters: dict[str, Any]
    ) -> AwsResponse:
        self.record_call(chain, service, operation)
        answer = await super().call(service, operation, **parameters)
        if (
            operation == "get_object"
            and parameters["Key"] in self.truncated_blobs
            and "Range" not in parameters
        ):
            self.truncated_blobs.discard(parameters["Key"])
            answer["Body"] = _TruncatedBody(answer["Body"])
        self.amend_response(operation, answer)
        return answer

    def record_call(
        self, chain: Chain, service: str, operation: str
    ) -> tuple[CallSiteOperation | None, int]:
        """A call is made, in this context; which one of its site it is."""
        site, number = None, 0
        if chain:  # otherwise it is the test itself
            site = CallSiteOperation(service, operation, str(chain[0]))
            number = self.calls[site]
            self.calls[site] += 1
            self.sites.update(chain)
        _CALL.set((site, number))
        return site, number

    def fault_for(self, site: CallSiteOperation | None, number: int) -> NetworkFault | None:
        """The fault for this call, at this attempt of the library."""
        fault = self._plan(site) if site else None
        if site is None or fault is None or number not in self._call_numbers(site):
            return None
        self._sent[site, number] += 1
        if fault is NetworkFault.ERROR_AFTER_ONCE and self._sent[site, number] > 1:
            return None
        self.injected[site] = fault
        return fault

    def stop_injecting(self) -> None:
        """Let all calls succeed, also those that are under way.

        While a backend closes, the clock does not advance, and a slow response would never come.
        """
        self._plan = lambda _: None
        self._clock.advance(SLOW_RESPONSE)

    async def client(self, service: str) -> Any:
        client = await super().client(service)
        if service not in self._patched_services:
            self._patched_services.add(service)
            session = client._endpoint.http_session
            send: Send = session.send
            session.send = lambda request: self._send(send, request)
        return client

    async def _send(self, send: Send, request: Any) -> Any:
        site, number = _CALL.get()
        fault = self.fault_for(site, number)
        if site is not None and site.operation in self.canned_responses:
            send = self._canned_send(site.operation)
        if site is None or fault is None:
            return await send(request)
        return await self._inject(fault, site, send, request)

    def _canned_send(self, operation: str) -> Send:
        async def send(request: Any) -> Any:
            self.canned_counts[operation] += 1
            return _response(request, 200, self.canned_responses[operation])

        return send

    async def _inject(
        self, fault: NetworkFault, site: CallSiteOperation, send: Send, request: Any
    ) -> Any:
        match fault:
            case NetworkFault.THROTTLED:
                status = 503 if site.service == "s3" else 400
                return _error_response(request, status, THROTTLING_CODES[site.service])
            case NetworkFault.ERROR_BEFORE:
                return _error_response(request, 500, "InternalServerError")
            case NetworkFault.ERROR_AFTER | NetworkFault.ERROR_AFTER_ONCE:
                await _read_fully(await send(request))
                return _error_response(request, 500, "InternalServerError")
            case NetworkFault.TIMED_OUT:
                await _read_fully(await send(request))
                raise ReadTimeoutError(endpoint_url=request.url)
            case NetworkFault.RESET:
                raise ConnectionClosedError(endpoint_url=request.url)
            case NetworkFault.SLOW:
                await self._advance(SLOW_RESPONSE)
                answer = await send(request)
                await self._advance(SLOW_RESPONSE)
                return answer
            case NetworkFault.PARTIAL:
                return await _partial_response(site.operation, send, request)

    async def _advance(self, duration: timedelta) -> None:
        """Sleep on the scenario's clock, which advances only while the loop is idle."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleAwareLoop)
        loop.end()
        try:
            await self._clock.sleep(duration)
        finally:
            loop.begin()


# What comes instead of an answer ------------------------------------------------------------------


class _TruncatedBody:
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


class _RawBody:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


def _response(request: Any, status: int, body: bytes) -> AioAWSResponse:
    return AioAWSResponse(request.url, status, {"content-length": str(len(body))}, _RawBody(body))


def _error_response(request: Any, status: int, code: str) -> AioAWSResponse:
    if "X-Amz-Target" in request.headers:
        return _response(request, status, json.dumps({"__type": code, "message": ""}).encode())
    body = f"<Error><Code>{code}</Code><Message/></Error>" if request.method != "HEAD" else ""
    if "s3" not in str(request.headers.get("Authorization", "")):
        body = f"<ErrorResponse>{body}</ErrorResponse>"
    return _response(request, status, body.encode())


async def _read_fully(response: Any) -> bytes:
    body: bytes = await response.content
    return body


async def _partial_response(operation: str, send: Send, request: Any) -> Any:
    """The last entry is not processed, and the response reports it as failed."""
    if operation == "delete_objects":
        key = re.findall(rb"<Key>([^<]*)</Key>", request.body)[-1].decode()
        error = f"<Error><Key>{key}</Key><Code>InternalError</Code><Message/></Error>"
        return _response(request, 200, f"<DeleteResult>{error}</DeleteResult>".encode())
    document = json.loads(request.body)
    if operation == "batch_get_item":
        ((table, keys),) = document["RequestItems"].items()
        left = {table: {**keys, "Keys": keys["Keys"][-1:]}}
        keys["Keys"] = keys["Keys"][:-1]
        entries, answer = keys["Keys"], {"Responses": {table: []}, "UnprocessedKeys": left}
    else:
        failed = document["Entries"].pop()
        entries = document["Entries"]
        answer = {"Successful": [], "Failed": [], "Entries": [], "FailedEntryCount": 0}
    if entries:
        request.body = json.dumps(document).encode()
        request.headers["Content-Length"] = str(len(request.body))
        answer |= json.loads(await _read_fully(await send(request)))
    if operation == "batch_get_item":
        answer["UnprocessedKeys"] = left
    elif operation == "put_events":
        answer["FailedEntryCount"] = 1
        answer["Entries"] = [*answer["Entries"], {"ErrorCode": "InternalFailure"}]
    else:
        code = {"Id": failed["Id"], "Code": "InternalError", "SenderFault": False}
        answer["Failed"] = [*answer.get("Failed", ()), code]
    return _response(request, 200, json.dumps(answer).encode())
