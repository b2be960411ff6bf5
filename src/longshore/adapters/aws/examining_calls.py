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

from longshore.adapters.aws.calls import Aws
from longshore.ports.clock import Clock
from longshore.ports.inspection import Check, Mark

WAITS_S = 8.0
"""How long one question waits for its answer."""

DENIED = frozenset(
    {"403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}
)
_AT_ONCE = 16
_EXPIRED = {"ExpiredToken", "ExpiredTokenException"}
_NOT_KNOWN = {
    *("AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException"),
}
_RENEW = "renew them: `aws sso login`, `aws configure`, or assume the role again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a question."""

    service: str
    operation: str
    answer: dict[str, Any] | None = None
    code: str | None = None  # why AWS refused
    silence: str | None = None  # why there is no answer at all
    remedy: str | None = None
    keyless: bool = False  # nothing was asked, for want of a key or a region
    endpoint: str = ""
    took: timedelta = timedelta(0)
    told_at: datetime | None = None  # what AWS's clock showed
    heard_at: datetime | None = None  # what ours showed, in the middle of the question

    @property
    def heard(self) -> bool:
        """Whether AWS has said anything."""
        return self.silence is None

    @property
    def turned_away(self) -> str | None:
        """Why whoever asks is not let in at all."""
        if self.code in _EXPIRED:
            return "the credentials have expired"
        if self.code in _NOT_KNOWN:
            return f"AWS does not accept the credentials ({self.code})"
        return self.silence if self.keyless else None

    def unexpected(self, name: str) -> Check:
        """For an answer that says nothing of what was asked."""
        if self.code in DENIED:
            allowed = f"{self.service}:{''.join(map(str.title, self.operation.split('_')))}"
            detail = f"not known: AWS does not let us look ({self.code})"
            return Check(name, Mark.WARN, detail, remedy=f"allow {allowed} to this identity")
        detail = f"not known: {self.code or self.silence}"
        return Check(name, Mark.FAIL, detail, remedy=self.remedy or "try again")


class Asking:
    """The way to AWS of one examination."""

    def __init__(self, aws: Aws, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, service: str, operation: str, **parameters: Any) -> Reply:
        """What AWS says, or why it says nothing."""
        reply: dict[str, Any] = {"service": service, "operation": operation}
        async with self._room:
            begun, now = self._clock.elapsed(), self._clock.now()
            try:
                async with asyncio.timeout(WAITS_S):
                    client = await self._aws.client(service)
                    reply["endpoint"] = client.meta.endpoint_url
                    begun, now = self._clock.elapsed(), self._clock.now()
                    answer = await getattr(client, operation)(**parameters)
                reply["answer"] = answer
                metadata = answer.get("ResponseMetadata", {})
            except ClientError as error:
                reply["code"] = error.response.get("Error", {}).get("Code") or "refused"
                metadata = error.response.get("ResponseMetadata", {})
            except (BotoCoreError, HTTPClientError, OSError, TimeoutError) as error:
                return Reply(**reply, **_silent(error))
            took = self._clock.elapsed() - begun
        shown = metadata.get("HTTPHeaders", {}).get("date")
        return Reply(**reply, took=took, told_at=_moment(shown), heard_at=now + took / 2)


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text or "").astimezone(UTC)
    return None


def _silent(error: BaseException) -> dict[str, Any]:
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
            remedy, keyless = _RENEW, True
        case TimeoutError():
            found, keyless = f"no answer within {WAITS_S:.0f} s", False
            remedy = "look at the network: routes, proxies, VPC endpoints"
        case _:
            found, keyless = f"no answer ({type(error).__name__})", False
            remedy = "look at the network, aws.region and aws.endpoint_url"
    return {"silence": found, "remedy": remedy, "keyless": keyless}


def identity_of(reply: Reply) -> Check:
    """Who we are to AWS."""
    if reply.answer is not None:
        detail = f"account {reply.answer.get('Account')}, {reply.answer.get('Arn')}"
        return Check("identity", Mark.OK, detail)
    if reason := reply.turned_away:
        return Check("identity", Mark.FAIL, reason, remedy=reply.remedy or _RENEW)
    # Others may well answer where STS cannot be reached: nothing but this needs it.
    detail = f"not known: {reply.code or reply.silence}"
    return Check("identity", Mark.WARN, detail, remedy=reply.remedy)
