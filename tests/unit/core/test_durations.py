"""How durations are read and written."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.text.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("1s250ms", 1.25),
        ("1.5h", 5_400),
        ("2d", 172_800),
        (" 5m ", 300),
        ("300", 300),
        ("0.5", 0.5),
        ("0", 0),
        (300, 300),
        (0.05, 0.05),
        ("PT5M", 300),
        ("P1DT2H", 93_600),
        ("P1W", 604_800),
        ("PT0.25S", 0.25),
        ("pt5m", 300),
        (timedelta(minutes=5), 300),
    ],
)
def test_a_duration_is_read(written: object, seconds: float) -> None:
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "soon", "5x", "m", "30m1h", "1m30", "1e3", "5 m", "P", "PT", "P1M", "nan", "٣s"),
        *(None, True, [], float("nan"), float("inf"), 1e30, "9" * 400 + "d"),
    ],
    ids=lambda written: ascii(written)[:10],
)
def test_what_is_no_duration_is_refused_with_examples(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 90s, 5m"):
        parse_duration(written)


@pytest.mark.parametrize("written", ["-5", "-5m", "-PT5M", -1, -0.1, timedelta(seconds=-1)])
def test_a_negative_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(seconds=200), "3m20s"),
        (timedelta(days=1, hours=2), "1d2h"),
        (timedelta(milliseconds=50), "50ms"),
        (timedelta(milliseconds=1, microseconds=500), "1.5ms"),
        (timedelta(seconds=2, microseconds=7), "2s0.007ms"),
    ],
)
def test_a_duration_is_written_short(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_what_is_written_is_read_back_the_same(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration
