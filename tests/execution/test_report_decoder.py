"""What a child says on its channel is read with care: by hand, in nonsense, and with secrets."""

import contextlib
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

from longshore.core.agents.transcripts import entry_id
from longshore.core.events.types import Activity
from longshore.execution.host.report_decoder import (
    decode_report,
    is_too_long,
    parse_long_message,
)
from longshore.execution.protocol import SMALL_LINE_BYTES
from longshore.execution.runners.channel import MessageTooLong, encode_message
from longshore.ports.runner import (
    ActivityReport,
    ConversationReport,
    ProgressReport,
    SummaryReport,
)

NOW = datetime(2030, 1, 7, tzinfo=UTC)
SECRET = "password=hunter2hunter2"


def decode(kind: str, **content: Any) -> Any:
    return decode_report({"type": kind, **content}, now=NOW)


@pytest.mark.parametrize(
    ("message", "report"),
    [
        ({"done": 3, "total": 10, "text": "pages"}, ProgressReport(3, 10, "pages")),
        ({"done": 0.5}, ProgressReport(0.5)),
        ({"done": 3, "total": "many", "text": None}, ProgressReport(3)),
        ({"done": 3, "total": -1, "text": 7}, ProgressReport(3, None, "7")),
        ({"done": 3, "total": 1e300}, ProgressReport(3)),
        ({"done": 3, "text": " two\n\tlines "}, ProgressReport(3, None, "two lines")),
    ],
)
def test_progress_is_taken_as_far_as_it_makes_sense(
    message: dict[str, Any], report: ProgressReport
) -> None:
    assert decode("progress", **message) == report


@pytest.mark.parametrize("done", [None, "3", True, -1, float("nan"), float("inf"), 2**60, [3]])
def test_progress_that_is_no_amount_is_passed_over(done: Any) -> None:
    assert decode("progress", done=done, total=10) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [("fine", "fine"), ("two\nlines", "two lines"), (42, "42"), ("half \ud800", "half ?")],
)
def test_a_summary_is_one_line(text: Any, line: str) -> None:
    assert decode("summary", text=text) == SummaryReport(line)


@pytest.mark.parametrize("text", [None, "", " \n "])
def test_a_summary_that_says_nothing_is_passed_over(text: Any) -> None:
    assert decode("summary", text=text) is None


def test_long_texts_are_truncated() -> None:
    summary, progress = (
        decode("summary", text="a b " * 1000),
        decode("progress", done=1, text="x y" * 999),
    )

    assert len(summary.text) == 500
    assert len(progress.text) == 500


def test_secrets_are_masked_in_everything_that_a_heartbeat_reports() -> None:
    message = [
        decode("summary", text=f"used {SECRET}").text,
        decode("progress", done=1, text=f"used {SECRET}").text,
        decode("activity", activity="step_running", step=f"used {SECRET}").activity.step_name,
    ]

    assert [text.startswith("used password") for text in message] == [True, True, True]
    assert [text for text in message if "hunter2" in text] == []


@pytest.mark.parametrize("activity", ["tool", "", 5, None, ["sdk_query"], SECRET])
def test_an_activity_of_an_unknown_type_is_waiting(activity: object) -> None:
    assert decode("activity", activity=activity).activity.type == "waiting"


def test_an_ordinary_activity_is_unchanged() -> None:
    doing = Activity(type="step_running", step_name="fetch page 3", timestamp=NOW)

    assert decode("activity", activity="step_running", step="fetch page 3") == ActivityReport(doing)


@pytest.mark.parametrize(
    ("start", "too_long"),
    [
        ('{"type":"result","value":"', False),
        ('  { "type" : "step", "name": "', False),
        ('{"type":"conversation","entries":"', False),
        ('{"type":"activity","activity":"', True),
        ('{"type":"results","value":"', True),
        ('{"value":"', True),
    ],
)
def test_only_messages_of_some_types_may_be_long(start: str, too_long: bool) -> None:
    assert is_too_long(start.encode() + b"x" * SMALL_LINE_BYTES) is too_long
    assert not is_too_long(start.encode())


def test_a_child_refuses_to_send_what_the_worker_would_not_read() -> None:
    assert len(encode_message("result", {"value": "x" * SMALL_LINE_BYTES})) > SMALL_LINE_BYTES
    with pytest.raises(MessageTooLong, match="a log message"):
        encode_message("log", {"text": "x" * SMALL_LINE_BYTES})


def test_a_long_message_keeps_its_values_encoded() -> None:
    result = parse_long_message(b'{"type":"result","value":[{"a": 1.50}]}')
    step = parse_long_message(b'{"type":"step","name":"one","result":{"a":[1]}}')

    assert result is not None
    assert bytes(result["value"].data) == b'[{"a": 1.50}]'
    assert step is not None
    assert (step["name"], step["result"].decode()) == ("one", {"a": [1]})
    assert parse_long_message(b'{"type":"result"}') is not None
    assert parse_long_message(b'{"other":1}') == {"other": 1}


def test_the_entries_of_a_long_conversation_stay_encoded_and_have_ids() -> None:
    entries = b'[{"uuid":"u1","text":"x"},{"b":2,"a":1},{"uuid":3}]'
    message = parse_long_message(
        b'{"type":"conversation","conversation":"c","entries":%b}' % entries
    )

    assert message is not None
    assert message["ids"] == ["u1", *map(entry_id, [{"a": 1, "b": 2}, {"uuid": 3}])]
    report = decode_report(message, now=NOW)
    assert isinstance(report, ConversationReport)
    assert report.entries.decode()[0]["uuid"] == "u1"


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"result","value":"\xff"}',
        b'{"type":"result","value":"\\ud800"}',
        b'{"type":"result","value":NaN}',
        b'{"type":"result","value":1e999}',
        b'{"type":"result","value":[1,]}',
        b'{"type":"result","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"type":"result","value":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"type":"conversation","conversation":"c","entries":[1]}',
        b'{"type":"conversation","conversation":1,"entries":[]}',
        b'{"type":"conversation","conversation":"c","entries":"[]"}',
        b'{"type":"conversation","conversation":"c","entries":[' + b"{}," * 10_000 + b"{}]}",
        b'{"type":"result","value":' + b"9" * 4301 + b"}",
        b'{"type":"result","value":1.' + b"0" * 4300 + b"}",
        b'{"type":"step","result":1}x',
    ],
    ids=lambda line: line[:40],
)
def test_a_long_message_that_cannot_be_stored_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(a message|an entry)"):
        parse_long_message(line)


LONG = 2**22
HOSTILE = {
    "text": b'["%b"]' % (b"x" * LONG),
    "emoji": b'"%b\\ud83d\\ude42"' % (b"x" * LONG),
    "newlines": b'"%b"' % (b"\\n" * (LONG // 2)),
    "digits": b"9" * LONG,
    "float": b"9" * LONG + b".0",
    "zeros": b"0e" + b"0" * LONG,
    "objects": b"[%b{}]" % (b"{}," * 10_000),
    "a long entry": b'[{"text":"%b\\ud83d\\ude42"}]' % (b"x" * LONG),
    "a long id": b'[{"uuid":"%b\\ud83d\\ude42"}]' % (b"x" * LONG),
    "long entries": b"[%b{}]" % (b'{"text":"%b\\ud83d\\ude42"},' % (b"x" * 250_000) * 16),
}
FIELDS = (
    ("result", "value"),
    ("step", "name"),
    ("step", "result"),
    ("step", "other"),
    ("conversation", "conversation"),
    ("conversation", "entries"),
)


@pytest.mark.parametrize("shape", HOSTILE)
@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_long_message_is_read_without_a_copy_of_its_values(
    kind: str, field: str, shape: str
) -> None:
    fields = {"name": b'"s"', "conversation": b'"c"', "entries": b"[]", field: HOSTILE[shape]}
    text = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
    line = bytearray(b'{"type":"%b",%b}' % (kind.encode(), text))
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            parse_long_message(line)
        assert tracemalloc.get_traced_memory()[1] < LONG // 2
    finally:
        tracemalloc.stop()
