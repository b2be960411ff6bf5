"""Counts and durations are shown to people in few words."""

from datetime import timedelta

import pytest

from longshore.core.text.numbers import duration_text, plural


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (12_000, "12,000 tasks")]
)
def test_a_count_has_the_plural_of_its_noun(count: int, text: str) -> None:
    assert plural(count, "task") == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, ""),
        (timedelta(seconds=0.84), "0.8 s"),
        (timedelta(seconds=12.4), "12 s"),
        (timedelta(seconds=59.9), "1 min"),
        (timedelta(minutes=3, seconds=20), "3 min 20 s"),
        (timedelta(hours=2, seconds=5), "2 h"),
        (timedelta(days=2, hours=3, minutes=59), "2 d 3 h"),
    ],
)
def test_a_duration_has_at_most_two_units(duration: timedelta | None, text: str) -> None:
    assert duration_text(duration) == text
