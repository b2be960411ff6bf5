"""Calls to AWS: every adapter makes them through ``AwsClient.call``, which maps the errors.

A read that failed can be repeated. A write that AWS refused did not happen. The outcome of a write
whose connection broke, or that failed inside AWS, is unknown, and the caller has to find it out.

The client library retries throttled and broken calls a few times. That is safe because every write
is conditional or idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.loaders import Loader

from longshore.errors import BackendError, BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock

T = TypeVar("T")

_SERVER_ERROR = 500
_UNKNOWN_OUTCOME_ATTEMPTS = 3  # the client library retries each of them
_PARAMETERS_PER_PAGE = 10  # SSM's limit
_THROTTLING_CODES = frozenset(
    {
        "KmsThrottled",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
RENEW_CREDENTIALS = "renew them: `aws sso login`, `aws configure`, or assume the role again"
"""What to do about credentials that AWS does not accept."""

# Why no call can be made, and what to do about it.
_MISSING_CONFIGURATION = {
    NoRegionError: ("no AWS region is set", "set LONGSHORE_AWS_REGION, or AWS_DEFAULT_REGION"),
    (NoCredentialsError, PartialCredentialsError): (
        "no AWS credentials were found",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role",
    ),
    ProfileNotFound: ("the AWS profile does not exist", "correct AWS_PROFILE"),
    (SSOError, TokenRetrievalError, CredentialRetrievalError): (
        "the credentials could not be fetched ({})",
        RENEW_CREDENTIALS,
    ),
}
# Reads the service descriptions from disk once per process.
_loader = Loader()

AwsResponse = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsClientOptions:
    """Endpoint, credentials, retries and timeouts."""

    region: str | None = None  # None: the region of the profile
    endpoint_url: str | None = None  # None: AWS itself
    # An access key and its secret. None: from the environment, a profile or a role.
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    max_attempts: int = 3
    connect_timeout_s: float = 5
    read_timeout_s: float = 30  # longer than the longest poll


class CallRefused(Exception):
    """AWS refused the call with a code that the caller expects; nothing happened."""

    def __init__(self, code: str, response: AwsResponse) -> None:
        self.code = code
        self.response = response
        super().__init__(code)


class AwsClient:
    """The clients of one process, opened on first use."""

    def __init__(self, options: AwsClientOptions) -> None:
        self._options = options
        self._session: AioSession | None = None
        self._clients: dict[str, Any] = {}
        self._exit_stack = AsyncExitStack()
        self._open_lock = asyncio.Lock()

    async def call(
        self,
        service: str,
        operation: str,
        *,
        alters: bool = False,
        expects: tuple[str, ...] = (),
        **parameters: Any,
    ) -> AwsResponse:
        """Call an operation such as ``get_item``.

        Args:
            alters: The operation writes: if its answer is lost, its outcome is unknown.
            expects: Error codes that the caller handles.

        Raises:
            CallRefused: with one of the codes in ``expects``.
            BackendUnavailable: throttled, timed out or unreachable; nothing happened.
            OutcomeUnknown: the operation alters and may have happened.
            BackendRejected: denied, malformed, or the resource does not exist.
        """
        try:
            client = await self.client(service)
            answer: AwsResponse = await getattr(client, operation)(**parameters)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in expects:
                raise CallRefused(code, dict(error.response)) from error
            raise _backend_error(error, code, f"{service}.{operation}", alters=alters) from error
        except (NoRegionError, NoCredentialsError, PartialCredentialsError) as error:
            raise BackendRejected(": ".join(missing_configuration(error))) from error
        except (BotoCoreError, HTTPClientError, OSError, TimeoutError) as error:
            text = f"{service}.{operation}: {type(error).__name__}"
            if alters and not _never_sent(error):
                raise OutcomeUnknown(text) from error
            raise BackendUnavailable(text) from error
        return answer

    async def pages(
        self,
        service: str,
        operation: str,
        *,
        token: tuple[str, str] = ("NextToken", "NextToken"),
        **parameters: Any,
    ) -> AsyncIterator[AwsResponse]:
        """The answers of an operation that answers in pages.

        Args:
            token: Where an answer says that there is more, and where the next call repeats it.
        """
        there, here = token
        while True:
            answer = await self.call(service, operation, **parameters)
            yield answer
            if not (following := answer.get(there)):
                return
            parameters[here] = following

    async def client(self, service: str) -> Any:
        """The library's client of a service; it raises the library's errors."""
        if service not in self._clients:
            async with self._open_lock:
                if service not in self._clients:
                    self._clients[service] = await self._open(service)
        return self._clients[service]

    async def _open(self, service: str) -> Any:
        if self._session is None:
            self._session = get_session()
            self._session.register_component("data_loader", _loader)
        options = self._options
        key, secret = options.credentials or (None, None)
        config = AioConfig(
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": options.max_attempts},
            max_pool_connections=100,
        )
        opening = self._session.create_client(
            service,
            region_name=options.region,
            endpoint_url=options.endpoint_url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=config,
        )
        return await self._exit_stack.enter_async_context(opening)

    async def close(self) -> None:
        """Close every connection."""
        self._clients.clear()
        await self._exit_stack.aclose()


def missing_configuration(error: Exception) -> tuple[str, ...]:
    """Why no call can be made, and the remedy; empty if that is not the reason of the error."""
    for kinds, (reason, remedy) in _MISSING_CONFIGURATION.items():
        if isinstance(error, kinds):
            return reason.format(type(error).__name__), remedy
    return ()


def _never_sent(error: BaseException) -> bool:
    """Whether there was no connection, so that nothing happened."""
    if isinstance(error, EndpointConnectionError):
        # The library raises it also for a connection that broke after the request.
        return isinstance(error.kwargs.get("error"), ClientConnectorError)
    return isinstance(error, ConnectTimeoutError)


def _backend_error(error: ClientError, code: str, call: str, *, alters: bool) -> BackendError:
    # Not the whole message: it may quote the request.
    text = f"{call}: {code or 'refused'}"
    if code in _THROTTLING_CODES:
        return BackendUnavailable(text)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= _SERVER_ERROR:
        return OutcomeUnknown(text) if alters else BackendUnavailable(text)
    return BackendRejected(text)


async def attempts(clock: Clock, number: int, first_backoff: timedelta) -> AsyncIterator[int]:
    """Count attempts from 1, with an exponential backoff before each but the first."""
    for attempt in range(1, number + 1):
        if attempt > 1:
            await clock.sleep(first_backoff * 2 ** (attempt - 2))
        yield attempt


async def retry_unknown_outcome(
    call: Callable[[], Awaitable[T]], *, even_unavailable: bool = False
) -> T:
    """Repeat an idempotent call while its outcome is unknown.

    Args:
        even_unavailable: Repeat it also if nothing happened.

    Raises:
        OutcomeUnknown: all answers were lost, or one was lost and then AWS was unavailable.
    """
    lost = False
    for attempts_left in reversed(range(_UNKNOWN_OUTCOME_ATTEMPTS)):
        try:
            return await call()
        except BackendUnavailable as error:
            unknown = isinstance(error, OutcomeUnknown)
            if attempts_left and (unknown or even_unavailable):
                lost = lost or unknown
            elif lost and not unknown:  # an earlier attempt may have succeeded
                raise OutcomeUnknown(str(error)) from error
            else:
                raise
    raise AssertionError  # the last attempt returns or raises


async def read_parameters(aws: AwsClient, stage: str) -> dict[str, str]:
    """The settings of a stage that are stored in SSM's parameter store: its secrets.

    The parameter ``/longshore/{stage}/alerts.slack_token`` is the setting ``alerts.slack_token``; a
    slash works like the dot. A function reads them once when it starts.

    Raises:
        BackendUnavailable: SSM is unavailable.
        BackendRejected: the role may not read them.
    """
    folder = f"/longshore/{stage}/"
    pages = aws.pages(
        "ssm",
        "get_parameters_by_path",
        Path=folder,
        Recursive=True,
        WithDecryption=True,
        MaxResults=_PARAMETERS_PER_PAGE,
    )
    return {
        parameter["Name"].removeprefix(folder).replace("/", "."): parameter["Value"]
        async for page in pages
        for parameter in page["Parameters"]
    }
