"""API keys: what one looks like, and what is kept of it.

A key is 32 random bytes, so a plain hash at rest is enough: there is nothing to guess. Only the
hash is ever stored; the key itself is shown once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

KEY_PREFIX = "lsk_"
SECRET_BYTES = 32


class ApiScope(StrEnum):
    """What a key may be used for."""

    SUBMIT = "submit"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is kept."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[ApiScope]
    hash: str
    created_at: datetime
    revoked_at: datetime | None = None

    def allows(self, scope: ApiScope) -> bool:
        """Whether the key may do this now; ``admin`` may do everything."""
        return self.revoked_at is None and (scope in self.scopes or ApiScope.ADMIN in self.scopes)


def make_key(secret: bytes) -> str:
    """The key's text, made from fresh random bytes."""
    if len(secret) < SECRET_BYTES:
        message = f"a key needs at least {SECRET_BYTES} random bytes, not {len(secret)}"
        raise ValueError(message)
    return KEY_PREFIX + base64.urlsafe_b64encode(secret).decode().rstrip("=")


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_matches(key: str, record: KeyRecord) -> bool:
    """Whether this is the key, compared in constant time."""
    return hmac.compare_digest(hash_key(key), record.hash)
