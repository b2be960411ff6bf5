"""An answer as it travels: one JSON document, or the events of a stream.

The stream has what the real one has and a careless reader trips over: text and tool input in
pieces, a ping in between, output tokens that are 1 at the start and whole only at the end, and all
other counts twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from verification.messages_api.script import (
    Answer,
    Block,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    Usage,
)

# Opaque: a client must send it back unchanged.
_SIGNATURE = "c2lnbmF0dXJl"
_CHUNKS = 3

Document = dict[str, Any]


def usage_document(usage: Usage) -> Document:
    """The tokens of an answer, under the API's names."""
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def error_document(error_type: str, message: str) -> Document:
    """An error, as a body or as an event of a stream."""
    return {"type": "error", "error": {"type": error_type, "message": message}}


def message_document(answer: Answer, *, model: str) -> Document:
    """The whole message: what a request without ``stream`` is answered with."""
    return {
        "id": answer.message_id or f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [_block_document(block) for block in answer.blocks],
        "stop_reason": answer.stop_reason,
        "stop_sequence": None,
        "usage": usage_document(answer.usage),
    }


def events(message: Document) -> list[Document]:
    """The same message as the events of a stream."""
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    final_counts = {name: count for name, count in usage.items() if name.endswith("_tokens")}
    return [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        *_content_events(message["content"]),
        {"type": "message_delta", "delta": delta, "usage": final_counts},
        {"type": "message_stop"},
    ]


def encode_event(event: Document) -> bytes:
    """One event, as it is written into the stream."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _block_document(block: Block) -> Document:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text}
        case ThinkingBlock(text=text):
            return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}
        case ToolCall(name=name, input=fields, id=defaults):
            identity = defaults or f"toolu_{uuid.uuid4().hex[:24]}"
            return {"type": "tool_use", "id": identity, "name": name, "input": dict(fields)}


def _content_events(content: Sequence[Document]) -> Iterator[Document]:
    for index, block in enumerate(content):
        empty, deltas = _split_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


def _split_block(block: Document) -> tuple[Document, list[Document]]:
    """The block without its content, and its content in pieces."""
    if block["type"] == "text":
        pieces = _chunks(block["text"])
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    pieces = _chunks(json.dumps(block["input"]))
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return {**block, "input": {}}, deltas


def _chunks(text: str) -> list[str]:
    length = max(1, -(-len(text) // _CHUNKS))
    return [text[start : start + length] for start in range(0, len(text), length)]
