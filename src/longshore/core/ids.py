"""Names of things: what they may look like, and how one is made from another.

A job's id is a hash of its tenant and the client's request id, so that submitting the same request
twice lands on the same row and "the row does not exist" is the whole test for "is it new". Job ids
have no underscore, so ``{job_id}_{key}`` splits at the first one without doubt.
"""

from __future__ import annotations

import base64
import hashlib
import re

from longshore.errors import UsageError

TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""What a task's global id looks like; anything else in a message is malformed."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a definition, a queue, a tenant or an app may be called."""

REQUEST_ID_LIMIT = 256

_JOB_HASH_BYTES = 15  # 120 bits: 24 letters of base32 with no padding


def job_id_of(tenant: str, request_id: str) -> str:
    """The one job that this request of this tenant can ever be."""
    digest = hashlib.sha256()
    for part in (tenant, request_id):
        encoded = part.encode()
        # The length before each part, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    letters = base64.b32encode(digest.digest()[:_JOB_HASH_BYTES]).decode().lower()
    return f"job-{letters}"


def task_id_of(job_id: str, key: str) -> str:
    """The global id of the task called ``key`` inside a job."""
    return f"{job_id}_{key}"


def split_task_id(task_id: str) -> tuple[str, str]:
    """The job id and the key that make up a global task id."""
    job_id, _, key = task_id.partition("_")
    return job_id, key


def is_task_id(text: object) -> bool:
    """Whether a message may name a task so."""
    return isinstance(text, str) and TASK_ID_PATTERN.fullmatch(text) is not None


def is_name(text: object) -> bool:
    """Whether a definition, queue, tenant or app may be called so."""
    return isinstance(text, str) and NAME_PATTERN.fullmatch(text) is not None


def is_request_id(text: object) -> bool:
    """Whether a client may use this text to mark its request: printable, not too long."""
    return isinstance(text, str) and 0 < len(text) <= REQUEST_ID_LIMIT and text.isprintable()


def check_request_id(text: object) -> None:
    """Raises ``UsageError`` if a client may not use this text as its request id."""
    if not is_request_id(text):
        message = f"a request id must be 1 to {REQUEST_ID_LIMIT} printable characters"
        raise UsageError(message)


def event_id_of(tenant: str, entity: str, sequence: int) -> str:
    """The id of an entity's n-th event, in the form of a UUID.

    Derived, not drawn: whoever writes that event writes the same id, so a reader that has seen
    the id has seen the event.
    """
    digest = hashlib.blake2b(f"{tenant}\0{entity}\0{sequence}".encode(), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
