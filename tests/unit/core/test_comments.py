"""Reasons and feedback are accepted as they are, or refused with a problem."""

import pytest

from longshore.core.maximums import comment_problem


@pytest.mark.parametrize("text", ["x", "x" * 10, " x ", "\U0001f600" * 10, "a\nb\tc\u00a0"])
def test_text_up_to_the_limit_is_taken(text: str) -> None:
    assert comment_problem(text, limit=10) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x" * 11, "must have at most 10 characters, and this has 11"),
        ("", "must not be empty"),
        (" \n\t", "must not be empty"),
        ("half a \ud83d", "must be valid Unicode, and this contains a lone surrogate"),
        ("\x1b[2J", "must not contain control characters, and this contains '\\x1b'"),
        ("a\rb", "must not contain control characters, and this contains '\\r'"),
        ("\x9b1A", "must not contain control characters, and this contains '\\x9b'"),
    ],
)
def test_an_invalid_comment_has_a_problem(text: str, problem: str) -> None:
    assert comment_problem(text, limit=10) == problem
