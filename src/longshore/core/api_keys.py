"""API keys: their form, what is stored of them, and the rate at which a key may call.

A key is 32 random bytes that cannot be guessed, so an unsalted hash is enough. Only the hash is
stored; the key itself is shown once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from longshore.errors import NotAllowed

KEY_PREFIX = "lsk_"
SECRET_BYTES = 32
_SHOWN_DENIED = 10


class ApiScope(StrEnum):
    """What a key may be used for."""

    SUBMIT = "submit"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """Which tasks a key may start; None: any."""

    definitions: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    builtins: bool = True  # also tasks of the built-in definitions, in new jobs

    def __bool__(self) -> bool:
        """Whether only some definitions or queues are allowed."""
        return self.definitions is not None or self.queues is not None

    def __str__(self) -> str:
        parts = []
        if self.definitions is not None:
            parts.append(f"of the definitions {', '.join(sorted(self.definitions))}")
        if self.queues is not None:
            parts.append(f"in the queues {', '.join(sorted(self.queues))}")
        return f"tasks {' '.join(parts)}" if parts else "all tasks"

    def check(self, work: Iterable[tuple[str, str]]) -> None:
        """Check the definitions of tasks, each with its queue.

        Raises:
            NotAllowed: a task is not allowed.
        """
        denied = dict.fromkeys(
            f"{definition!r} in queue {queue!r}"
            for definition, queue in work
            if (self.definitions is not None and definition not in self.definitions)
            or (self.queues is not None and queue not in self.queues)
        )
        if denied:
            first, more = ", ".join([*denied][:_SHOWN_DENIED]), len(denied) - _SHOWN_DENIED
            shown = f"{first} and {more} more" if more > 0 else first
            raise NotAllowed(f"this key may only start {self}; not allowed: {shown}")


NO_LIMITS = WorkLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is stored."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[ApiScope]
    hash: str
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    limits: WorkLimits = NO_LIMITS

    def allows(self, scope: ApiScope) -> bool:
        """Whether the key has this scope and is not revoked; ``admin`` includes every scope."""
        return self.revoked_at is None and (scope in self.scopes or ApiScope.ADMIN in self.scopes)


def make_key(secret: bytes) -> str:
    """Returns the text of a key made from random bytes."""
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"a key needs at least {SECRET_BYTES} random bytes, not {len(secret)}")
    return KEY_PREFIX + base64.urlsafe_b64encode(secret).decode().rstrip("=")


def hash_key(key: str) -> str:
    """Returns the hash of a key, which is stored in its place."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_matches(key: str, record: KeyRecord) -> bool:
    """Whether the record is of this key; the comparison takes constant time."""
    return hmac.compare_digest(hash_key(key), record.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Calls per second on average, and how many may come at once."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst < 1:
            raise ValueError(
                "a rate must be above 0 per second, with a burst of at least 1, not "
                f"{self.per_second} and {self.burst}"
            )


def count_call(
    free_at: timedelta, rate: Rate, *, now: timedelta
) -> tuple[timedelta, timedelta | None]:
    """Count a call of a caller who may use the whole burst again at ``free_at``.

    Times are of a clock that is never set back. Returns ``free_at`` after the call, and the time to
    wait if the call is not allowed yet, which then does not count.
    """
    interval = timedelta(seconds=1 / rate.per_second)
    after = max(free_at, now) + interval
    wait = after - now - rate.burst * interval
    return (free_at, wait) if wait > timedelta(0) else (after, None)
