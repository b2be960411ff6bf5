"""Documents of tasks, and the keys of the blobs that Longshore stores.

A row stays small, because every transition rewrites it. A short document is stored in the row; a
longer one is written to the blob store *before* the commit that refers to it, so that a row never
refers to a missing blob.

The input of a task may contain references to the results of its parents. A result that replaces a
reference is not searched for references: it cannot request the result of another task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longshore.core.records import value
from longshore.errors import UsageError

INLINE_LIMIT_BYTES = 1024
KEY_LIMIT_BYTES = 1024

RESULT_REFERENCE = "$longshore.result"
"""The only field of an object that is replaced by the result of the task it names."""

_HASH_CHARACTERS = 16
_PIECE_BYTES = 256 * 1024
_NAME_LIMIT_BYTES = 600  # so that the longest task id fits before it
_DIGEST_BYTES = 4


@value
class Document:
    """A JSON document: its text, or its key in the blob store."""

    text: str | None = None
    key: str | None = None
    size: int = 0  # bytes of the JSON text


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """JSON text of a child that is long, and is stored as it is.

    As values it could need many times its size, and the time to decode it would stop the worker.
    """

    data: bytes | bytearray | memoryview
    # Raises ``ValueError`` if it cannot be stored; takes long. None: it was checked.
    check: Callable[[bytes | bytearray | memoryview], None] | None = None

    def decode(self) -> Any:
        """Returns the value."""
        return json.loads(bytes(self.data))

    def pieces(self) -> Iterator[bytes]:
        """Yields the text in pieces."""
        for at in range(0, len(self.data), _PIECE_BYTES):
            yield bytes(self.data[at : at + _PIECE_BYTES])


def json_encoder(*, canonical: bool, default: Any) -> Callable[[Any], str]:
    """Returns an encoder of JSON without spaces; canonical text is ASCII and has sorted fields.

    ``json.JSONEncoder.encode`` would make such an encoder for each value. Numbers that are not
    finite are refused, except in canonical text. A value that contains itself raises
    ``RecursionError``.
    """
    module: Any = json.encoder
    text = module.encode_basestring_ascii if canonical else module.encode_basestring
    write = module.c_make_encoder(None, default, text, None, ":", ",", canonical, False, canonical)
    return lambda value: "".join(write(value, 0))


encode_json = json_encoder(canonical=False, default=json.JSONEncoder().default)


def make_document(value: Any, key: str) -> tuple[Document, bytes | None]:
    """Returns a value as a document, and the bytes to store under ``key`` if it is too long."""
    return text_document(encode_json(value), key)


def text_document(
    text: str, key: str, *, inline_bytes: int = INLINE_LIMIT_BYTES
) -> tuple[Document, bytes | None]:
    """Returns JSON text as a document, and the bytes to store; see ``make_document``."""
    if text.isascii() and len(text) <= inline_bytes:
        return Document(text=text, size=len(text)), None
    data = text.encode()
    if len(data) <= inline_bytes:
        return Document(text=text, size=len(data)), None
    return Document(key=key, size=len(data)), data


def result_reference(key: str) -> dict[str, str]:
    """Returns a reference to the result of the task ``key``."""
    return {RESULT_REFERENCE: key}


def resolve_references(value: Any, results: Mapping[str, Any]) -> Any:
    """Returns the value with every reference replaced by the result that it names.

    Raises:
        UsageError: a reference names a task whose result is not in ``results``.
    """
    if isinstance(value, list):
        return [resolve_references(item, results) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {RESULT_REFERENCE}:
        return {name: resolve_references(item, results) for name, item in value.items()}
    key = value[RESULT_REFERENCE]
    if not isinstance(key, str) or key not in results:
        message = f"the input refers to the result of {key!r}, but the task does not depend on it"
        raise UsageError(message)
    return results[key]


def validate_key(key: str) -> str:
    """Returns a blob key: relative, printable, and without empty, ``.`` and ``..`` parts.

    Raises:
        UsageError: the text is not a blob key.
    """
    parts = key.split("/")
    if (
        not key.isprintable()
        or len(key.encode(errors="replace")) > KEY_LIMIT_BYTES
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise UsageError(
            f"{key[:80]!r} is not a blob key: use names joined by single slashes, such as "
            f"'jobs/a/input.json', at most {KEY_LIMIT_BYTES} bytes"
        )
    return key


def submitted_document_key(job_id: str, body_hash: str, name: str) -> str:
    """Returns the key of a document that was part of a submitted job.

    The key contains a hash of the submitted body. If two clients use one request id for two bodies
    at the same time, the client that loses does not overwrite a document of the other.
    """
    return f"jobs/{job_id}/submitted-{body_hash[:_HASH_CHARACTERS]}/{name}.json"


def task_document_key(job_id: str, key: str, name: str) -> str:
    """Returns the key of a document of one task; ``name`` distinguishes attempts if necessary."""
    return f"jobs/{job_id}/tasks/{key}/{name}.json"


def conversation_part_key(
    job_id: str, key: str, *, attempt: int = 0, number: int | None = None
) -> str:
    """Returns the key of a part of a task's conversations; without a number, their prefix.

    Sorted by key, the parts are in the order in which they were stored.
    """
    folder = f"jobs/{job_id}/tasks/{key}/conversations/"
    return folder if number is None else f"{folder}{attempt:09d}-{number:09d}.json"


def attempt_file_key(task_id: str, attempt: int, name: str) -> str:
    """Returns the key of a file of an attempt; with an empty name, the prefix of all its files.

    ``name`` is a path below the attempt's folder that ``safe_name`` returned.
    """
    return f"task/logs/{task_id}/attempt-{attempt}/{name}"


def job_blob_prefixes(job_id: str) -> tuple[str, ...]:
    """Returns the prefixes of the keys of all blobs of a job and its tasks."""
    events = "events/"
    return (
        f"jobs/{job_id}/",
        *(f"{events}{job_id}/", f"{events}{job_id}_"),
        f"task/logs/{job_id}_",
    )


def safe_name(path: str) -> str:
    """Returns a relative path as a part of a key: printable, and without ``..``.

    A path that is changed or truncated gets a suffix made from a hash of the whole path, so that
    two different paths stay different. A path that this function returned does not change.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    plain = "/".join(parts)
    name = "/".join("_" if part == ".." else _printable(part) for part in parts) or "_"
    if name == plain and len(name.encode()) <= _NAME_LIMIT_BYTES:
        return name
    import hashlib  # loaded here, as OpenSSL makes every fork dearer

    digest = hashlib.blake2b(path.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    suffix = f"~{digest.hexdigest()}"
    return name.encode()[: _NAME_LIMIT_BYTES - len(suffix)].decode(errors="ignore") + suffix


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "_" for character in text)
