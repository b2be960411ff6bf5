"""Calls to AWS: one way out for every adapter, and errors as the ports know them.

What a failed call means depends on what it was to do. A read that failed can be made again. A write
that AWS refused did not happen; one that was cut off, or that AWS itself stumbled over, may have
happened, and only whoever made it knows how to find out.

The client library makes throttled and broken calls again by itself a few times. That is safe here
because every write is conditional or says the same when it is said twice.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)
from botocore.loaders import Loader

from longshore.errors import BackendError, BackendRejected, BackendUnavailable, OutcomeUnknown

_SERVER_ERROR = 500
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
_NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY, or run where a role gives them"
)
_NO_REGION = "no AWS region is known: set LONGSHORE_AWS_REGION, or AWS_DEFAULT_REGION"
# The descriptions of AWS's services are read from disk once a process.
_loader = Loader()

AwsResponse = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsClientOptions:
    """Where AWS is, and how patiently it is asked."""

    region: str | None = None  # None: that of the profile
    endpoint_url: str | None = None  # None: AWS itself
    # An access key and its secret. None: as usual on AWS, from the environment, a profile, a role.
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    max_attempts: int = 3
    connect_timeout_s: float = 5
    read_timeout_s: float = 30  # longer than the longest poll


class CallRefused(Exception):
    """AWS has understood the call and does not carry it out; nothing happened."""

    def __init__(self, code: str, response: AwsResponse) -> None:
        self.code = code
        self.response = response
        super().__init__(code)


class AwsClient:
    """The clients of one process, opened when they are first needed."""

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
        """The answer of an operation such as ``get_item``.

        Args:
            alters: It writes: if its answer is lost, it may have happened.
            expects: Codes of refusals that the caller knows what to do with.

        Raises:
            Refused: with one of the codes in ``expects``.
            BackendUnavailable: throttled, timed out, out of reach; it did not happen.
            OutcomeUnknown: it alters, and may have happened.
            BackendRejected: denied, malformed, or what it is about does not exist.
        """
        try:
            client = await self.client(service)
            answer: AwsResponse = await getattr(client, operation)(**parameters)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in expects:
                raise CallRefused(code, dict(error.response)) from error
            raise _backend_error(error, code, f"{service}.{operation}", alters=alters) from error
        except NoRegionError as error:
            raise BackendRejected(_NO_REGION) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BackendRejected(_NO_CREDENTIALS) from error
        except (BotoCoreError, HTTPClientError, OSError, TimeoutError) as error:
            text = f"{service}.{operation}: {type(error).__name__}"
            if alters and not _never_sent(error):
                raise OutcomeUnknown(text) from error
            raise BackendUnavailable(text) from error
        return answer

    async def client(self, service: str) -> Any:
        """The client of a service; what it raises is the library's."""
        if service not in self._clients:
            async with self._open_lock:
                if service not in self._clients:
                    self._clients[service] = await self._open(service)
        return self._clients[service]

    async def _open(self, service: str) -> Any:
        if self._session is None:
            self._session = get_session()
            self._session.register_component("data_loader", _loader)
        place = self._options
        key, secret = place.credentials or (None, None)
        config = AioConfig(
            connect_timeout=place.connect_timeout_s,
            read_timeout=place.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": place.max_attempts},
            max_pool_connections=100,
            # In its oldest regions S3's addresses would be signed as new buckets refuse.
            signature_version="s3v4" if service == "s3" else None,
        )
        opening = self._session.create_client(
            service,
            region_name=place.region,
            endpoint_url=place.endpoint_url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=config,
        )
        return await self._exit_stack.enter_async_context(opening)

    async def close(self) -> None:
        """Close every connection."""
        self._clients.clear()
        await self._exit_stack.aclose()


def _never_sent(error: BaseException) -> bool:
    """Whether there was no connection, so that nothing can have happened."""
    if isinstance(error, EndpointConnectionError):
        # The library says so too of a connection that broke when all had been sent.
        return isinstance(error.kwargs.get("error"), ClientConnectorError)
    return isinstance(error, ConnectTimeoutError)


def _backend_error(error: ClientError, code: str, call: str, *, alters: bool) -> BackendError:
    # Never the whole message: it may quote what was sent.
    text = f"{call}: {code or 'refused'}"
    if code in _THROTTLING_CODES:
        return BackendUnavailable(text)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= _SERVER_ERROR:
        return OutcomeUnknown(text) if alters else BackendUnavailable(text)
    return BackendRejected(text)
