"""What a blob may be called, and the names Longshore itself gives."""

from __future__ import annotations

import hashlib

from longshore.errors import UsageError

KEY_LIMIT_BYTES = 1024


def validate_key(key: str) -> str:
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


def submitted_document_key(job_id: str, body_hash: str, name: str) -> str:
    """Where a document that came with a submit is kept.

    By the submit's content: of two clients that use one request id for two bodies at once, the
    one that loses must not have written over what the winner's rows refer to.
    """
    return f"jobs/{job_id}/submitted-{body_hash[:_HASH_CHARACTERS]}/{name}.json"


def task_document_key(job_id: str, key: str, name: str) -> str:
    """Where a document of one task is kept; ``name`` tells attempts apart where there are many."""
    return f"jobs/{job_id}/tasks/{key}/{name}.json"


def conversation_part_key(
    job_id: str, key: str, *, attempt: int = 0, number: int | None = None
) -> str:
    """Where a part of a task's conversations is kept; without a number, what all begin with.

    In the order of their names they are in the order in which they came.
    """
    folder = f"jobs/{job_id}/tasks/{key}/conversations/"
    return folder if number is None else f"{folder}{attempt:09d}-{number:09d}.json"


def attempt_file_key(task_id: str, attempt: int, name: str) -> str:
    """Where a file that an attempt left is kept; without a name, what all of its files begin with.

    ``name`` is a path below the attempt's folder: bring yours through ``safe_name``.
    """
    return f"task/logs/{task_id}/attempt-{attempt}/{name}"


_NAME_LIMIT_BYTES = 600  # the longest task id fits before it
_DIGEST_BYTES = 4


def safe_name(path: str) -> str:
    """A relative path as it may stand in a key: nothing unseen, nothing that leads upwards.

    What has to be changed or cut gets a mark made from the whole, so that two paths that would
    look the same do not become one. A name that came from here stays as it is.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    plain = "/".join(parts)
    name = "/".join("_" if part == ".." else _visible(part) for part in parts) or "_"
    if name == plain and len(name.encode()) <= _NAME_LIMIT_BYTES:
        return name
    digest = hashlib.blake2b(path.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    mark = f"~{digest.hexdigest()}"
    return name.encode()[: _NAME_LIMIT_BYTES - len(mark)].decode(errors="ignore") + mark


def _visible(text: str) -> str:
    return "".join(character if character.isprintable() else "_" for character in text)
