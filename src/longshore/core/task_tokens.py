"""Task tokens: signed text by which a remote worker proves which lease it holds.

A token is stateless: any server with the secret can read a token that another server wrote. It
says which lease is meant, and not that the lease is live: only the row knows that, and refuses an
old fence. The token's own expiry limits how long a stolen token is useful.

A token has exactly one form. Text that decodes to the same bytes but is written differently is
refused, so tokens can be compared as text. The receipt gives access to the queue: neither the
receipt nor the token is ever part of an error message.
"""

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from longshore.errors import InvalidTaskToken

TOKEN_LIFETIME = timedelta(hours=12)
TOKEN_LIMIT_CHARACTERS = 8192  # a queue's receipts have up to about 1,500
SECRET_LENGTH_BYTES = 32

_LIMIT_BYTES = TOKEN_LIMIT_CHARACTERS * 3 // 4  # base64 writes three bytes as four characters
_VERSION = 1
# Part of the signature, so that other signatures with the same secret are not valid tokens.
_PURPOSE = b"longshore task token\x00"
# Version, fence, expiry in microseconds since 1970, then the lengths of the three texts.
_HEADER = struct.Struct("!BQqHHH")
_SIGNATURE_BYTES = 32
_MAX_FENCE = 2**64 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskToken:
    """The lease that a remote worker holds."""

    task_id: str
    queue: str
    receipt: str = field(repr=False)
    fence: int
    expires_at: datetime

    def __post_init__(self) -> None:
        if not 0 <= self.fence <= _MAX_FENCE:
            message = f"fence must be a whole number of 64 bits, not {self.fence!r}"
            raise ValueError(message)
        if self.expires_at.tzinfo is None:
            message = f"expires_at must have a time zone, but is {self.expires_at!r}"
            raise ValueError(message)


def sign_token(token: TaskToken, *, secret: bytes) -> str:
    """Returns the token as text.

    Raises:
        ValueError: The secret is too short, or the token would be longer than
            ``TOKEN_LIMIT_CHARACTERS``.
    """
    _check_secret(secret)
    texts = [text.encode() for text in (token.task_id, token.queue, token.receipt)]
    lengths = [len(text) for text in texts]
    if _HEADER.size + sum(lengths) + _SIGNATURE_BYTES > _LIMIT_BYTES:
        message = (
            f"a task token must have at most {TOKEN_LIMIT_CHARACTERS} characters: "
            f"use a shorter task id, queue name or receipt"
        )
        raise ValueError(message)
    expiry_us = (token.expires_at - _EPOCH) // _MICROSECOND
    body = _HEADER.pack(_VERSION, token.fence, expiry_us, *lengths) + b"".join(texts)
    return _encode(body + _signature(body, secret))


def read_token(text: str, *, secrets: Sequence[bytes], now: datetime) -> TaskToken:
    """Returns the token that ``sign_token`` wrote with any of the secrets.

    Raises:
        InvalidTaskToken: It is malformed, of an unknown version, not signed by
            one of the secrets, or expired at ``now``; ``reason`` says which.
        ValueError: There is no secret, or one is too short.
    """
    if not secrets:
        message = "at least one secret is needed to read a task token"
        raise ValueError(message)
    for secret in secrets:
        _check_secret(secret)
    body, signature = _parts(_decode(text))
    # Every secret is tried, so that the time does not reveal which one matches.
    matches = [hmac.compare_digest(signature, _signature(body, secret)) for secret in secrets]
    if not any(matches):
        raise InvalidTaskToken("signature")
    token = _unpack(body)
    if now >= token.expires_at:
        raise InvalidTaskToken("expired")
    return token


def _check_secret(secret: bytes) -> None:
    if len(secret) < SECRET_LENGTH_BYTES:
        message = f"a secret must have at least {SECRET_LENGTH_BYTES} bytes, not {len(secret)}"
        raise ValueError(message)


def _signature(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + body, "sha256")


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    if len(text) > TOKEN_LIMIT_CHARACTERS:
        raise InvalidTaskToken("malformed")
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (BadBase64, ValueError):
        raise InvalidTaskToken("malformed") from None
    # The decoder skips unknown characters and ignores spare bits; encoding again reveals both.
    if not raw or _encode(raw) != text:
        raise InvalidTaskToken("malformed")
    return raw


def _parts(raw: bytes) -> tuple[bytes, bytes]:
    if raw[0] != _VERSION:
        raise InvalidTaskToken("version")
    if len(raw) < _HEADER.size + _SIGNATURE_BYTES:
        raise InvalidTaskToken("malformed")
    _, _, _, *lengths = _HEADER.unpack_from(raw)
    if len(raw) != _HEADER.size + sum(lengths) + _SIGNATURE_BYTES:
        raise InvalidTaskToken("malformed")
    return raw[:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]


def _unpack(body: bytes) -> TaskToken:
    _, fence, expiry_us, *lengths = _HEADER.unpack_from(body)
    texts: list[str] = []
    start = _HEADER.size
    for length in lengths:
        texts.append(body[start : start + length].decode())
        start += length
    task_id, queue, receipt = texts
    return TaskToken(
        task_id=task_id,
        queue=queue,
        receipt=receipt,
        fence=fence,
        expires_at=_EPOCH + expiry_us * _MICROSECOND,
    )
