"""A row and its events as few bytes: a write of up to one kilobyte costs one unit, and not two.

Rows say much the same things with other values, so they are compressed with a dictionary of what
they say: a kilobyte becomes some 200 bytes. The first byte tells which dictionary it was. What is
stored once must be readable for ever, so a dictionary is never changed: a better one is added.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

from longshore.errors import StoreTooNew

# What stands at the end is nearest, and costs least: so what is said most often comes last.
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
    """The text as few bytes."""
    squeeze = zlib.compressobj(_LEVEL, zdict=_DICTIONARIES[_NEWEST])
    return bytes([_NEWEST]) + squeeze.compress(text.encode()) + squeeze.flush()


def decompress_text(data: bytes | str, store: str = "the ledger's table") -> str:
    """The text again; a function is handed the bytes of a stream's record as base64.

    Raises:
        StoreTooNew: it was packed with a dictionary that this version does not have.
    """
    if isinstance(data, str):
        data = base64.b64decode(data)
    dictionary = _DICTIONARIES.get(data[0])
    if dictionary is None:
        raise StoreTooNew(store, data[0], _NEWEST)
    unsqueeze = zlib.decompressobj(zdict=dictionary)
    return (unsqueeze.decompress(data[1:]) + unsqueeze.flush()).decode()
