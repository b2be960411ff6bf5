"""Values of DynamoDB: attributes, documents, and compressed text.

Documents are stored as maps, so that other programs can read the table. DynamoDB's numbers have 38
digits and its maps 32 levels: a document that needs more is stored as JSON text.

Rows are compressed, because a write of up to one kilobyte costs one unit. Rows contain much the
same text, so they are compressed with a dictionary of it: a kilobyte becomes some 200 bytes. What
is stored must stay readable, so a dictionary is never changed: a better one is added.
"""

from __future__ import annotations

import base64
import json
import zlib
from decimal import Decimal
from typing import Any, Final

from longshore.errors import StoreTooNew

Attribute = dict[str, Any]
Item = dict[str, Attribute]

_MAX_DIGITS = 38
_MIN_EXPONENT, _MAX_EXPONENT = -128, 125  # powers of ten
_MAX_DEPTH = 30


def string_attribute(value: str) -> Attribute:
    return {"S": value}


def number_attribute(value: int) -> Attribute:
    return {"N": str(value)}


class _NotRepresentable(ValueError):
    """DynamoDB cannot store the document as a map."""


def encode_document(document: Any) -> Attribute:
    """A document as a value of DynamoDB, or as JSON text if that cannot represent it."""
    try:
        return _encode(document, _MAX_DEPTH)
    except _NotRepresentable:
        return {"S": json.dumps(document, separators=(",", ":"))}


def decode_document(attribute: Attribute) -> dict[str, Any]:
    """The inverse of ``encode_document``."""
    document: dict[str, Any] = (
        json.loads(attribute["S"]) if "S" in attribute else decode_value(attribute)
    )
    return document


def _encode(value: Any, depth: int) -> Attribute:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int() | float():
            return {"N": _encode_number(value)}
    if depth == 0:
        raise _NotRepresentable
    if isinstance(value, dict):
        return {"M": {name: _encode(child, depth - 1) for name, child in value.items()}}
    return {"L": [_encode(child, depth - 1) for child in value]}


def _encode_number(value: float) -> str:
    text = repr(value)
    exact = Decimal(text)
    parts = exact.normalize().as_tuple()
    if not exact.is_finite() or len(parts.digits) > _MAX_DIGITS:
        raise _NotRepresentable
    if exact and not _MIN_EXPONENT < exact.adjusted() < _MAX_EXPONENT:
        raise _NotRepresentable
    return text


def decode_value(attribute: Attribute) -> Any:
    """The plain value of an attribute."""
    ((kind, value),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return _decode_number(value)
        case "M":
            return {name: decode_value(child) for name, child in value.items()}
        case "L":
            return [decode_value(child) for child in value]
    return None


def _decode_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


# Compressed text --------------------------------------------------------------------------------

# The end of a dictionary costs least to refer to, so the most frequent text comes last.
_DICTIONARY_1: Final = (
    b'"failure":{"category":"","error_type":"","message":"","detail":null,"retryable":false,'
    b'"failed_at":"","attempts_used":1,"cancel":{"by":"user","reason":null,"at":"'
    b'"eventType":"Task Heartbeat","heartbeatNumber":1,"elapsedMs":0,"memoryRss":0,'
    b'"lastActivity":{"kind":"waiting","step":null},"eventType":"Task Processing Failed",'
    b'"eventType":"Task Failed","eventType":"Task Released","eventType":"Task Timeout",'
    b'"eventType":"Task Cancelled","eventType":"Task Waiting","willRetry":true,"nextAttemptAt":'
    b'"errorType":"","errorMessage":"","category":"","isRetryable":"eventType":"Job Tasks Added",'
    b'"eventType":"Job Failure Detected","eventType":"Job Cancelled","eventType":"Job Resumed",'
    b'"previousTotalTasks":1,"totalTasksNow":"newTasks":[{"parents":[[],[0],[1],[0,1]],'
    b'"priority":1,"queue":"default","max_attempts":3,"timeout_us":"delay":"blocked":"awaits":"'
    b'"name":null,"version":1,"graph":{"text":"{\\"keys\\":[\\"\\"],\\"names\\":[\\"command\\"],'
    b'\\"parents\\":[[]]}","key":null,"size":49},"total":1,"intents":[{"id":"","kind":"create",'
    b'"numbers":"1","round":1,"by":"producer","body":{"text":"{\\"document\\":{\\"tasks\\":['
    b'{\\"input\\":{\\"argv\\":[\\"\\"]},\\"kwargs\\":{\\"function\\":\\"dependsOn\\":[\\"'
    b'\\"name\\":\\"command\\",\\"python\\",\\"agent\\",\\"taskId\\":\\"\\"}]},'
    b'\\"versions\\":{\\"command\\":0},\\"retry\\":{\\"maxAttempts\\":3,\\"baseUs\\":1000000,'
    b'\\"capUs\\":30000000}}","key":null,"size":167}}],"completed":"1","failed":"",'
    b'"end_emitted_round":1,'
    b'"eventType":"Job Created","eventType":"Job Completed","origin":"dispatcher",'
    b'"tasks":[{"taskId":"","name":"command","dependsOn":[],"input":{"argv":[""]}}],'
    b'"totalTasks":1,"taskStatuses":{"":"completed"},"round":1}}]'
    b'{"spec":{"id":"job-","tenant":"default","app":"longshore","request_id":"","body_hash":"'
    b'{"id":"job-","tenant":"default","app":"longshore","job_id":"job-","key":"","number":0,'
    b'"definition":"command","definition_version":0,"created_at":"2026-01-01T00:00:00.000000Z",'
    b'"input":{"text":"{\\"argv\\":[\\"","key":null,"size":17}}\n'
    b'{"state":"pending","due_at":"","enqueued_at":"{"state":"completed","version":3,'
    b'"ran_for":"PT0.0S","result":{"text":"null","key":null,"size":4},"exit_code":0,'
    b'"finished_at":"2026-{"state":"processing","version":2,"change_id":"","updated_at":"2026-'
    b'"attempt":1,"attempts_used":1,"fence":4294967297,"lease":{"worker_id":"","fence":4294967297,'
    b'"claim_id":"","acquired_at":"","expires_at":"","heartbeats":0,"local":true},'
    b'"started_at":"2026-","last_sequence":2,"last_event_at":"2026-}\n'
    b'[{"sequence":1,"eventType":"Task Pending","timestamp":17'
    b'"context":{"origin":"producer","source":"user","environment":""},'
    b'"properties":{"requestId":"job-","jobId":"job-","name":"command","dependsOn":[],"round":1}}]'
    b'"output":null,"durationMs":0,"exitCode":0,"usage":{"inputTokens":0,"outputTokens":0,'
    b'"cacheReadTokens":0,"turns":0,"costUsd":0.0}}}]"startedAt":17"effectiveUntil":17'
    b'"processId":1,"attemptNumber":1,"fence":4294967297}}]'
    b'[{"sequence":2,"eventType":"Task Processing Started","eventType":"Task Completed",'
    b'"timestamp":17,"context":{"origin":"worker","source":"system","workerId":"","environment":""}'
    b',"properties":{"requestId":"job-'
)

_DICTIONARIES: Final = {1: _DICTIONARY_1}
_NEWEST: Final = max(_DICTIONARIES)
_LEVEL: Final = 9


def compress_text(text: str) -> bytes:
    """Compress a text; the first byte is the number of the dictionary."""
    compressor = zlib.compressobj(_LEVEL, zdict=_DICTIONARIES[_NEWEST])
    return bytes([_NEWEST]) + compressor.compress(text.encode()) + compressor.flush()


def decompress_text(data: bytes | str, store: str = "the ledger's table") -> str:
    """The inverse of ``compress_text``; a stream record has the bytes as base64 text.

    Raises:
        StoreTooNew: this version does not have the dictionary.
    """
    if isinstance(data, str):
        data = base64.b64decode(data)
    dictionary = _DICTIONARIES.get(data[0])
    if dictionary is None:
        raise StoreTooNew(store, data[0], _NEWEST)
    decompressor = zlib.decompressobj(zdict=dictionary)
    return (decompressor.decompress(data[1:]) + decompressor.flush()).decode()
