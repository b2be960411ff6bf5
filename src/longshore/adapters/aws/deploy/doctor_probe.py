"""Questions to AWS whose failure is an answer too: for whoever examines an installation.

Each question is asked once and waited for a few seconds, so that an examination comes to its end
also where nothing answers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
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
"""How long one question waits for its answer."""

ACCESS_DENIED_CODES = frozenset(
    {"403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}
)
_CONCURRENCY = 16
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException"}
_INVALID_CREDENTIALS_CODES = {
    *("AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException"),
}
_RENEW_REMEDY = "renew them: `aws sso login`, `aws configure`, or assume the role again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What came of a question."""

    service: str
    operation: str
    response: dict[str, Any] | None = None
    code: str | None = None  # why AWS refused
    unreachable_reason: str | None = None  # why there is no answer at all
    remedy: str | None = None
    unconfigured: bool = False  # nothing was asked, for want of a key or a region
    endpoint: str = ""
    duration: timedelta = timedelta(0)
    server_time: datetime | None = None  # what AWS's clock showed
    local_time: datetime | None = None  # what ours showed, in the middle of the question

    @property
    def reachable(self) -> bool:
        """Whether AWS has said anything."""
        return self.unreachable_reason is None

    @property
    def credentials_error(self) -> str | None:
        """Why whoever asks is not let in at all."""
        if self.code in _EXPIRED_CODES:
            return "the credentials have expired"
        if self.code in _INVALID_CREDENTIALS_CODES:
            return f"AWS does not accept the credentials ({self.code})"
        return self.unreachable_reason if self.unconfigured else None

    def unexpected_check(self, name: str) -> Check:
        """For an answer that says nothing of what was asked."""
        if self.code in ACCESS_DENIED_CODES:
            allowed = f"{self.service}:{''.join(map(str.title, self.operation.split('_')))}"
            detail = f"not known: AWS does not let us look ({self.code})"
            return Check(name, CheckStatus.WARN, detail, remedy=f"allow {allowed} to this identity")
        detail = f"not known: {self.code or self.unreachable_reason}"
        return Check(name, CheckStatus.FAIL, detail, remedy=self.remedy or "try again")


class Probe:
    """The way to AWS of one examination."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._semaphore = asyncio.Semaphore(_CONCURRENCY)

    async def call(self, service: str, operation: str, **parameters: Any) -> ProbeResult:
        """What AWS says, or why it says nothing."""
        reply: dict[str, Any] = {"service": service, "operation": operation}
        async with self._semaphore:
            begun, now = self._clock.elapsed(), self._clock.now()
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    client = await self._aws.client(service)
                    reply["endpoint"] = client.meta.endpoint_url
                    begun, now = self._clock.elapsed(), self._clock.now()
                    answer = await getattr(client, operation)(**parameters)
                reply["response"] = answer
                metadata = answer.get("ResponseMetadata", {})
            except ClientError as error:
                reply["code"] = error.response.get("Error", {}).get("Code") or "refused"
                metadata = error.response.get("ResponseMetadata", {})
            except (BotoCoreError, HTTPClientError, OSError, TimeoutError) as error:
                return ProbeResult(**reply, **_unreachable(error))
            took = self._clock.elapsed() - begun
        shown = metadata.get("HTTPHeaders", {}).get("date")
        return ProbeResult(
            **reply, duration=took, server_time=_parse_date(shown), local_time=now + took / 2
        )


def _parse_date(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text or "").astimezone(UTC)
    return None


def _unreachable(error: BaseException) -> dict[str, Any]:
    match error:
        case NoRegionError():
            found, keyless = "no AWS region is known", True
            remedy = "set LONGSHORE_AWS_REGION, or AWS_REGION"
        case NoCredentialsError() | PartialCredentialsError():
            found, keyless = "no AWS credentials were found", True
            remedy = (
                "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a"
                " role gives them"
            )
        case ProfileNotFound():
            found, remedy, keyless = "the AWS profile does not exist", "correct AWS_PROFILE", True
        case SSOError() | TokenRetrievalError() | CredentialRetrievalError():
            found = f"the credentials could not be fetched ({type(error).__name__})"
            remedy, keyless = _RENEW_REMEDY, True
        case TimeoutError():
            found, keyless = f"no answer within {PROBE_TIMEOUT_S:.0f} s", False
            remedy = "look at the network: routes, proxies, VPC endpoints"
        case _:
            found, keyless = f"no answer ({type(error).__name__})", False
            remedy = "look at the network, aws.region and aws.endpoint_url"
    return {"unreachable_reason": found, "remedy": remedy, "unconfigured": keyless}


def identity_check(result: ProbeResult) -> Check:
    """Who we are to AWS."""
    if result.response is not None:
        detail = f"account {result.response.get('Account')}, {result.response.get('Arn')}"
        return Check("identity", CheckStatus.OK, detail)
    if reason := result.credentials_error:
        return Check("identity", CheckStatus.FAIL, reason, remedy=result.remedy or _RENEW_REMEDY)
    # Others may well answer where STS cannot be reached: nothing but this needs it.
    detail = f"not known: {result.code or result.unreachable_reason}"
    return Check("identity", CheckStatus.WARN, detail, remedy=result.remedy)
