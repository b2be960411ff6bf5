"""Calls to AWS whose failure is a result too, for the doctor.

Each call is made once and has a timeout of a few seconds, so that the doctor ends even if nothing
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from longshore.adapters.aws.client import (
    RENEW_CREDENTIALS,
    AwsClient,
    missing_configuration,
)
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


Properties = Mapping[str, str | None]
"""Properties of a resource by name, as text; None and an empty text are one that is not set."""


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


@dataclass(frozen=True, slots=True)
class _Advice:
    """What a difference means."""

    effect: str = ""
    remedy: str | None = None  # None: deploy
    status: CheckStatus = CheckStatus.FAIL


_WARN = CheckStatus.WARN
# By the first word of a property; those with "no" are of a property that should not be there.
_ADVICE = {
    "billing": _Advice("more than its capacity is throttled", status=_WARN),
    "encryption": _Advice(status=_WARN),
    "expiry": _Advice("old items are not deleted", status=_WARN),
    "key": _Advice("it cannot be changed", "use another stage, or move it away and deploy"),
    "no expiry": _Advice("its items must not expire", "disable its time to live"),
    "no index": _Advice("it is not used and costs a write each time", "delete it", _WARN),
    "public": _Advice("the bucket can be made public"),
    "retention": _Advice(status=_WARN),
    "state": _Advice("it does nothing"),
    "status": _Advice(remedy="wait a little", status=_WARN),
    "stream": _Advice("no event is published"),
    "undelivered-events": _Advice("what the rule cannot deliver is lost", status=_WARN),
    "visibility": _Advice(status=_WARN),
}


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that is checked, and the problems with it."""

    kind: str
    name: str
    deploy_command: str  # the usual remedy
    attributes: dict[str, str] = field(default_factory=dict)  # of a queue, as SQS describes them
    problems: list[Check] = field(default_factory=list)

    def answer_of(self, result: ProbeResult, *, absent: str | None = None) -> dict[str, Any] | None:
        """The answer of a call, or None after reporting that it is missing or was not read.

        Args:
            absent: The code with which AWS says that a property is not set: the answer is empty.
        """
        if absent is not None and result.code == absent:
            return {}
        if result.code in _NOT_FOUND_CODES:
            self.report("it does not exist", f"a {self.kind}")
        elif result.code in ACCESS_DENIED_CODES:
            action = "".join(map(str.title, result.operation.split("_")))
            remedy = f"allow {result.service}:{action} to this identity"
            self.report(f"unknown: access denied ({result.code})", None, remedy, status=_WARN)
        elif result.response is None:
            detail = f"unknown: {result.code or result.unreachable_reason}"
            self.report(detail, None, result.remedy or "try again")
        return result.response

    def compare(self, expected: Properties, actual: Properties) -> None:
        """Report each property that is not as expected."""
        for name in dict.fromkeys((*expected, *actual)):
            usual, there = expected.get(name) or None, actual.get(name) or None
            if there != usual:
                word = name.partition(" ")[0]
                advice = _ADVICE.get(word if usual else f"no {word}", _Advice())
                effect = f": {advice.effect}" if advice.effect else ""
                detail = f"{name} is {there or 'missing'}{effect}"
                self.report(detail, usual or f"no {name}", advice.remedy, status=advice.status)

    def report(
        self,
        detail: str,
        expected: str | None = None,
        remedy: str | None = None,
        *,
        status: CheckStatus = CheckStatus.FAIL,
    ) -> None:
        """Report a problem."""
        name = f"{self.kind} {self.name}"
        check = Check(name, status, detail, expected, remedy or self.deploy_command)
        if check not in self.problems:  # several calls may find that it does not exist
            self.problems.append(check)

    def count(self, *attributes: str) -> int:
        """The approximate number of messages in a queue."""
        return sum(int(self.attributes.get(attribute, 0)) for attribute in attributes)

    def checks(self, ok: str) -> list[Check]:
        """The problems; without any, that it is sound."""
        return self.problems or [Check(f"{self.kind} {self.name}", CheckStatus.OK, ok)]


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


def _unreachable(error: Exception) -> dict[str, Any]:
    if missing := missing_configuration(error):
        reason, remedy = missing
        return {"unreachable_reason": reason, "remedy": remedy, "unconfigured": True}
    if isinstance(error, TimeoutError):
        reason = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        remedy = "check the network: routes, proxies, VPC endpoints"
    else:
        reason = f"no answer ({type(error).__name__})"
        remedy = "check the network, aws.region and aws.endpoint_url"
    return {"unreachable_reason": reason, "remedy": remedy}


def identity_check(caller: ProbeResult, others: Sequence[ProbeResult] = ()) -> Check:
    """The check of the identity that AWS sees.

    Args:
        others: Of other services, which may refuse the credentials if STS does not answer.
    """
    if caller.response is not None:
        detail = f"account {caller.response.get('Account')}, {caller.response.get('Arn')}"
        return Check("identity", CheckStatus.OK, detail)
    for result in (caller, *others):
        if reason := result.credentials_error:
            remedy = result.remedy or RENEW_CREDENTIALS
            return Check("identity", CheckStatus.FAIL, reason, remedy=remedy)
    # Only this check needs STS; other services may be reachable.
    detail = f"unknown: {caller.code or caller.unreachable_reason}"
    return Check("identity", CheckStatus.WARN, detail, remedy=caller.remedy)
