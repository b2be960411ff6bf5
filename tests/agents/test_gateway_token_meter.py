"""What a meter reads in an answer, however it comes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from longshore.core.agents.prices import NO_TOKENS, TokenCounts
from longshore.execution.runners.agent import accounting
from longshore.execution.runners.agent.accounting import TokenMeter, parse_tokens


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _start(**usage: Any) -> bytes:
    return _event("message_start", message={"usage": {"output_tokens": 1, **usage}})


def _delta(**usage: Any) -> bytes:
    return _event("message_delta", delta={}, usage=usage)


STOP = _event("message_stop")
QUOTED_EVENTS = (
    'he wrote "message_stop", {"type": "message_start"} and\n\ndata: {"type":"message_stop"}'
)
TEXT = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": QUOTED_EVENTS})
WHOLE = _start(input_tokens=30, cache_read_input_tokens=4) + TEXT + _delta(output_tokens=5) + STOP


def _read(stream: bytes) -> TokenMeter:
    meter = TokenMeter(is_stream=True)
    meter.feed(stream)
    return meter


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_stream_is_read_in_pieces_of_any_size(size: int, ending: bytes) -> None:
    stream = WHOLE.replace(b"\n", ending)
    meter = TokenMeter(is_stream=True)

    for start in range(0, len(stream), size):
        meter.feed(stream[start : start + size])

    assert meter.complete
    assert meter.tokens == TokenCounts(input=30, output=5, cache_read=4)
    assert (meter.error_type, meter.error_status) == (None, None)


@pytest.mark.parametrize(("id_", "read"), [("msg_1", "msg_1"), (["odd"], None), (None, None)])
def test_the_id_of_an_answer_is_read_from_a_stream_and_from_a_document(
    id_: object, read: str | None
) -> None:
    streamed = _read(_event("message_start", message={"id": id_}))
    whole = TokenMeter(is_stream=False)
    whole.feed(json.dumps({"type": "message", "id": id_}).encode())
    whole.end()

    assert (streamed.message_id, whole.message_id) == (read, read)


def test_text_of_the_model_is_not_read_as_an_event_of_the_api() -> None:
    meter = _read(TEXT)

    assert not meter.complete
    # Of one that breaks off, what was seen of it counts.
    assert replace(meter.tokens, output=0) == NO_TOKENS
    assert 0 < meter.tokens.output <= len(TEXT) / 4


def test_a_last_line_without_its_end_counts() -> None:
    meter = _read(STOP.rstrip(b"\n"))
    assert not meter.complete

    meter.end()

    assert meter.complete


# As the command line takes them: each was measured.
@pytest.mark.parametrize(
    ("begun", "ended", "tokens"),
    [
        ({"input_tokens": 10}, {"output_tokens": 0, "input_tokens": 30}, TokenCounts(input=30)),
        ({"input_tokens": 30}, {"output_tokens": 0, "input_tokens": 10}, TokenCounts(input=10)),
        ({"input_tokens": 10}, {"output_tokens": 0, "input_tokens": 0}, TokenCounts(input=10)),
        ({"input_tokens": 10}, {"input_tokens": 10}, TokenCounts(input=10, output=1)),
        ({"input_tokens": 10}, {"output_tokens": None}, TokenCounts(input=10, output=1)),
        ({}, {"output_tokens": 0, "speed": "fast"}, TokenCounts(fast=True)),
        ({"inference_geo": "us"}, {"output_tokens": 0}, TokenCounts(in_the_us=True)),
    ],
)
def test_a_later_word_counts_unless_it_says_nothing(
    begun: dict[str, Any], ended: dict[str, Any], tokens: TokenCounts
) -> None:
    assert _read(_start(**begun) + _delta(**ended)).tokens == tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"cache_creation_input_tokens": 9}, TokenCounts(cache_write=9)),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": (0, 9)},
            TokenCounts(cache_write_1h=9),
        ),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": (3, 6)},
            TokenCounts(cache_write=3, cache_write_1h=6),
        ),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": (0, 99)},
            TokenCounts(cache_write_1h=9),
        ),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": (99, 0)},
            TokenCounts(cache_write=9),
        ),
        ({"cache_creation": (3, 6)}, TokenCounts(cache_write=3, cache_write_1h=6)),
        ({"server_tool_use": {"web_search_requests": 3}}, TokenCounts(web_searches=3)),
        ({"server_tool_use": None, "cache_creation": None}, NO_TOKENS),
        ({"input_tokens": "7", "output_tokens": -7, "cache_read_input_tokens": True}, NO_TOKENS),
    ],
)
def test_figures_are_read_as_the_command_line_reads_them(
    usage: dict[str, Any], tokens: TokenCounts
) -> None:
    if isinstance(usage.get("cache_creation"), tuple):
        short, long = usage["cache_creation"]
        split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
        usage = {**usage, "cache_creation": split}

    assert parse_tokens(usage) == tokens


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"type": "message_start"\n',
        b'data: ["message_start"]\n',
        b'data: {"type": "message_start", "message": 3}\n',
        b'data: {"type": "message_delta", "usage": "message_delta"}\n',
        b'data: "error"\n',
        b': {"type": "message_stop"}\n',
        b"\xff\xfe\n",
    ],
)
def test_invalid_reports_are_ignored(line: bytes) -> None:
    meter = _read(line + WHOLE)

    assert meter.tokens == TokenCounts(input=30, output=5, cache_read=4)
    assert meter.error_type is None


def test_a_line_above_the_limit_is_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "LINE_LIMIT_BYTES", 200)
    meter = TokenMeter(is_stream=True)

    meter.feed(b'data: {"type": "message_stop", "text": "')
    for _ in range(100):
        meter.feed(b"x" * 10)
    meter.feed(b'"}\n')
    assert not meter.complete

    meter.feed(STOP)
    assert meter.complete


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ({"error": {"type": "overloaded_error"}}, "overloaded_error", 529),
        ({"error": {"type": "rate_limit_error"}}, "rate_limit_error", 429),
        ({"error": {"type": "brand_new"}}, "brand_new", 500),
        ({"error": {"type": 3}}, "api_error", 500),
        ({}, "api_error", 500),
    ],
)
def test_an_error_is_known_by_its_kind(text: dict[str, Any], kind: str, status: int) -> None:
    stream, document = _read(_event("error", **text)), TokenMeter(is_stream=False)
    document.feed(json.dumps({"type": "error", **text}).encode())
    document.end()

    for meter in (stream, document):
        assert (meter.error_type, meter.error_status, meter.complete) == (kind, status, False)


def test_a_document_is_read_when_it_is_whole() -> None:
    meter, body = TokenMeter(is_stream=False), b'{"type": "message", "usage": {"input_tokens": 7}}'
    for start in range(len(body)):
        meter.feed(body[start : start + 1])
        assert replace(meter.tokens, output=0) == NO_TOKENS

    meter.end()

    assert (meter.complete, meter.tokens) == (True, TokenCounts(input=7))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b"[" * 99_999])
def test_a_document_of_another_kind_says_nothing(body: bytes) -> None:
    meter = TokenMeter(is_stream=False)
    meter.feed(body)
    meter.end()

    assert (meter.complete, meter.tokens, meter.error_type) == (False, NO_TOKENS, None)


def test_a_document_above_the_limit_is_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "DOCUMENT_LIMIT_BYTES", 10)
    meter = TokenMeter(is_stream=False)
    for piece in (b'{"type": "message", ', b'"usage": {}', b"}"):
        meter.feed(piece)
    meter.end()

    assert not meter.complete
