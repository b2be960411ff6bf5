"""Calls to AWS whose failure is a result too, for the doctor.

Each call is made once and has a timeout of a few seconds, so that the doctor ends even if nothing
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

from longshore.adapters.aws.client import AwsClient
from longshore.core.inspection import Check, CheckStatus
from longshore.ports.clock import Clock

PROBE_TIMEOUT_S = 8.0
"""The timeout of one call."""

ACCESS_DENIED_CODES = frozenset(
    {"403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}
)
_NOT_FOUND_CODES = {
    *("ResourceNotFoundException", "404", "NoSuchBucket"),
    *("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
}
_CONCURRENCY = 16
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException"}
_INVALID_CREDENTIALS_CODES = {
    *("AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException"),
}
_RENEW_REMEDY = "renew them: `aws sso login`, `aws configure`, or assume the role again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of a call."""

    service: str
    operation: str
    response: dict[str, Any] | None = None
    code: str | None = None  # why AWS refused
    unreachable_reason: str | None = None  # why there is no answer at all
    remedy: str | None = None
    unconfigured: bool = False  # no call was made: credentials or region are missing
    endpoint: str = ""
    duration: timedelta = timedelta(0)
    server_time: datetime | None = None  # of AWS's clock
    local_time: datetime | None = None  # of our clock, in the middle of the call

    @property
    def reachable(self) -> bool:
        """Whether AWS has answered."""
        return self.unreachable_reason is None

    @property
    def credentials_error(self) -> str | None:
        """Why AWS does not accept the credentials, if so."""
        if self.code in _EXPIRED_CODES:
            return "the credentials have expired"
        if self.code in _INVALID_CREDENTIALS_CODES:
            return f"AWS does not accept the credentials ({self.code})"
        return self.unreachable_reason if self.unconfigured else None

    def unexpected_check(self, name: str) -> Check:
        """The check for a result that leaves the state of a resource unknown."""
        if self.code in ACCESS_DENIED_CODES:
            allowed = f"{self.service}:{''.join(map(str.title, self.operation.split('_')))}"
            detail = f"unknown: access denied ({self.code})"
            return Check(name, CheckStatus.WARN, detail, remedy=f"allow {allowed} to this identity")
        detail = f"unknown: {self.code or self.unreachable_reason}"
        return Check(name, CheckStatus.FAIL, detail, remedy=self.remedy or "try again")


@dataclass(frozen=True, slots=True)
class Subject:
    """A resource that is checked."""

    name: str
    deploy_command: str  # the usual remedy

    def unavailable(self, result: ProbeResult, expected: str | None = None) -> Check | None:
        """The check for a resource that is missing or could not be read."""
        if result.code in _NOT_FOUND_CODES:
            return self.fail("it does not exist", expected)
        return result.unexpected_check(self.name) if result.response is None else None

    def ok(self, detail: str) -> Check:
        return Check(self.name, CheckStatus.OK, detail)

    def warn(self, detail: str, expected: str | None = None, remedy: str | None = None) -> Check:
        return Check(self.name, CheckStatus.WARN, detail, expected, remedy or self.deploy_command)

    def fail(self, detail: str, expected: str | None = None, remedy: str | None = None) -> Check:
        return Check(self.name, CheckStatus.FAIL, detail, expected, remedy or self.deploy_command)

    def compare(
        self, actual: str | None, expected: str, detail: str, remedy: str | None = None
    ) -> Iterator[Check]:
        """A failure if a property is not as expected; ``{}`` in the detail is what it is."""
        if actual != expected:
            yield self.fail(detail.format(actual), expected, remedy)


@dataclass(frozen=True, slots=True)
class Probe:
    """The calls of one run of the doctor."""

    aws: AwsClient
    clock: Clock
    semaphore: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY))

    async def call(self, service: str, operation: str, **parameters: Any) -> ProbeResult:
        """Make a call. Returns its answer, or why there is none."""
        reply: dict[str, Any] = {"service": service, "operation": operation}
        async with self.semaphore:
            started, now = self.clock.elapsed(), self.clock.now()
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    client = await self.aws.client(service)
                    reply["endpoint"] = client.meta.endpoint_url
                    started, now = self.clock.elapsed(), self.clock.now()
                    answer = await getattr(client, operation)(**parameters)
                reply["response"] = answer
                metadata = answer.get("ResponseMetadata", {})
            except ClientError as error:
                reply["code"] = error.response.get("Error", {}).get("Code") or "refused"
                metadata = error.response.get("ResponseMetadata", {})
            except (BotoCoreError, HTTPClientError, OSError, TimeoutError) as error:
                return ProbeResult(**reply, **_unreachable(error))
            took = self.clock.elapsed() - started
        date = metadata.get("HTTPHeaders", {}).get("date")
        return ProbeResult(
            **reply, duration=took, server_time=_parse_date(date), local_time=now + took / 2
        )


def _parse_date(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text or "").astimezone(UTC)
    return None


# Why no call was made: the configuration lacks something.
_UNCONFIGURED: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    ((NoRegionError,), "no AWS region is set", "set LONGSHORE_AWS_REGION, or AWS_REGION"),
    (
        (NoCredentialsError, PartialCredentialsError),
        "no AWS credentials were found",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role",
    ),
    ((ProfileNotFound,), "the AWS profile does not exist", "correct AWS_PROFILE"),
    (
        (SSOError, TokenRetrievalError, CredentialRetrievalError),
        "the credentials could not be fetched ({})",
        _RENEW_REMEDY,
    ),
)


def _unreachable(error: Exception) -> dict[str, Any]:
    for kinds, reason, remedy in _UNCONFIGURED:
        if isinstance(error, kinds):
            reason = reason.format(type(error).__name__)
            return {"unreachable_reason": reason, "remedy": remedy, "unconfigured": True}
    if isinstance(error, TimeoutError):
        reason = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        remedy = "check the network: routes, proxies, VPC endpoints"
    else:
        reason = f"no answer ({type(error).__name__})"
        remedy = "check the network, aws.region and aws.endpoint_url"
    return {"unreachable_reason": reason, "remedy": remedy}


def identity_check(result: ProbeResult) -> Check:
    """The check of the identity that AWS sees."""
    if result.response is not None:
        detail = f"account {result.response.get('Account')}, {result.response.get('Arn')}"
        return Check("identity", CheckStatus.OK, detail)
    if reason := result.credentials_error:
        return Check("identity", CheckStatus.FAIL, reason, remedy=result.remedy or _RENEW_REMEDY)
    # Only this check needs STS; other services may be reachable.
    detail = f"unknown: {result.code or result.unreachable_reason}"
    return Check("identity", CheckStatus.WARN, detail, remedy=result.remedy)
