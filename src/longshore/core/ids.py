"""Ids and names: their patterns, and how ids are derived.

A job's id is a hash of its tenant and the client's request id: a request that is submitted twice
has the same row, and a job is new if its row does not exist. Job ids have no underscore, so
``{job_id}_{key}`` splits at the first one.
"""

from __future__ import annotations

import base64
import hashlib
import re

from longshore.errors import UsageError

TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""The pattern of a task's global id."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The pattern of the names of definitions, queues, tenants and apps."""

REQUEST_ID_LIMIT = 256

_JOB_HASH_BYTES = 15  # 120 bits: 24 letters of base32 with no padding


def job_id_of(tenant: str, request_id: str) -> str:
    """Returns the id of the job that this request creates."""
    digest = hashlib.sha256()
    for part in (tenant, request_id):
        encoded = part.encode()
        # The length precedes each part, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    letters = base64.b32encode(digest.digest()[:_JOB_HASH_BYTES]).decode().lower()
    return f"job-{letters}"


def task_id_of(job_id: str, key: str) -> str:
    """Returns the global id of the task ``key`` of a job."""
    return f"{job_id}_{key}"


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
        message = f"a request id must be 1 to {REQUEST_ID_LIMIT} printable characters"
        raise UsageError(message)
