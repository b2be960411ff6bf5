"""What a blob may be called, and the names Longshore itself gives."""

from __future__ import annotations

from longshore.errors import UsageError

KEY_LIMIT_BYTES = 1024


def checked_key(key: str) -> str:
    """The key, if it is one: relative, without ``.``, ``..`` or empty parts, printable, not long.

    Raises:
        UsageError: it is not.
    """
    parts = key.split("/")
    if (
        not key.isprintable()
        or len(key.encode(errors="replace")) > KEY_LIMIT_BYTES
        or any(part in ("", ".", "..") for part in parts)
    ):
        message = (
            f"{key[:80]!r} is no blob key: use names joined by single slashes, such as "
            f"'jobs/a/input.json', at most {KEY_LIMIT_BYTES} bytes"
        )
        raise UsageError(message)
    return key


_HASH_CHARACTERS = 16


def submitted_document(job_id: str, body_hash: str, name: str) -> str:
    """Where a document that came with a submit is kept.

    By the submit's content: of two clients that use one request id for two bodies at once, the
    one that loses must not have written over what the winner's rows refer to.
    """
    return f"jobs/{job_id}/submitted-{body_hash[:_HASH_CHARACTERS]}/{name}.json"


def task_document(job_id: str, key: str, name: str) -> str:
    """Where a document of one task is kept; ``name`` tells attempts apart where there are many."""
    return f"jobs/{job_id}/tasks/{key}/{name}.json"
