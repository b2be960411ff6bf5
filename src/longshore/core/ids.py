"""Ids and names: their patterns, and how ids are derived.

A job's id is a function of its tenant and the client's request id: a request that is submitted
twice has the same row, and a job is new if its row does not exist. It has 120 bits: a hash, or, for
a request id that a client of Longshore drew, the time in that request id and then a hash, so that
an index of ids grows at its end. No code orders or removes jobs by the time in an id.

The 120 bits are written in base 32 with the digits before the letters, so that texts sort like the
numbers. Job ids have no underscore, so ``{job_id}_{key}`` splits at the first one.
"""

from __future__ import annotations

import re

from longshore.errors import UsageError

TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""The pattern of a task's global id."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The pattern of the names of definitions, queues, tenants and apps."""

REQUEST_ID_LIMIT = 256

ID_BYTES = 15
JOB_PREFIX, REQUEST_PREFIX = "job-", "req-"
_HASH_BITS = 72  # of an id that has a time
_TIME_BITS = 48
ID_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in ID_DIGITS for second in ID_DIGITS]
_SHIFTS = range(110, -1, -10)
_TRACE_PRIME, _SPAN_PRIME = 2**128 - 159, 2**64 - 59
_ID_PATTERN = re.compile(r"[0-9a-v]{24}")


def format_id(prefix: str, number: int) -> str:
    """Returns the prefix and 24 characters for a number of 120 bits."""
    return prefix + "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def parse_id(prefix: str, text: str) -> int | None:
    """Returns the number that ``format_id`` wrote; None if the text has another form."""
    digits = text.removeprefix(prefix)
    if len(text) == len(digits) + len(prefix) and _ID_PATTERN.fullmatch(digits):
        return int(digits, 32)
    return None


def new_request_id(now_ms: int, random_bits: int) -> str:
    """Returns a request id with its time and 72 random bits."""
    return format_id(REQUEST_PREFIX, _with_time(now_ms, random_bits))


def _with_time(now_ms: int, bits: int) -> int:
    return (now_ms & (1 << _TIME_BITS) - 1) << _HASH_BITS | bits & (1 << _HASH_BITS) - 1


def job_id_of(tenant: str, request_id: str) -> str:
    """Returns the id of the job that this request creates."""
    import hashlib  # loaded here, as OpenSSL makes every fork dearer

    encoded = tenant.encode()
    # The length precedes the tenant, so that ("ab", "c") and ("a", "bc") differ.
    digest = hashlib.blake2b(b"%d:%s" % (len(encoded), encoded), digest_size=ID_BYTES)
    digest.update(request_id.encode())
    number = int.from_bytes(digest.digest(), "big")
    drawn = parse_id(REQUEST_PREFIX, request_id)
    return format_id(
        JOB_PREFIX, number if drawn is None else _with_time(drawn >> _HASH_BITS, number)
    )


def task_id_of(job_id: str, key: str) -> str:
    """Returns the global id of the task ``key`` of a job."""
    return f"{job_id}_{key}"


def traceparent_of(job_id: str, task_id: str, attempt: int) -> str:
    """Returns the trace context of an attempt, as W3C defines its text.

    All attempts of a job have one trace id, and each attempt is a span of its own.
    """
    trace = parse_id(JOB_PREFIX, job_id) or _spread(job_id, _TRACE_PRIME)
    span = _spread(f"{task_id}.{attempt}", _SPAN_PRIME)
    return f"00-{trace:032x}-{span:016x}-01"


def _spread(text: str, prime: int) -> int:
    # As even as a hash, without what loading OpenSSL costs each fork. Zero is not a valid id.
    return int.from_bytes(text.encode(), "big") % prime or 1


def split_task_id(task_id: str) -> tuple[str, str]:
    """Returns the job id and the key of a global task id."""
    job_id, _, key = task_id.partition("_")
    return job_id, key


def is_task_id(text: object) -> bool:
    """Whether the value is a global task id."""
    return isinstance(text, str) and TASK_ID_PATTERN.fullmatch(text) is not None


def is_name(text: object) -> bool:
    """Whether the value is a name of a definition, queue, tenant or app."""
    return isinstance(text, str) and NAME_PATTERN.fullmatch(text) is not None


def check_request_id(text: object) -> None:
    """Raises ``UsageError`` unless the text is printable and not too long for a request id."""
    if not (isinstance(text, str) and 0 < len(text) <= REQUEST_ID_LIMIT and text.isprintable()):
        raise UsageError(f"a request id must be 1 to {REQUEST_ID_LIMIT} printable characters")
