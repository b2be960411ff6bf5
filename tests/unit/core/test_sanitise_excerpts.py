"""Prompt input and excerpts: nothing unseen, nothing too long, no secret cut in half."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.text.sanitise import (
    CUT_SUFFIX,
    MASK,
    PROMPT_LIMIT_CHARACTERS,
    SCAN_LIMIT_CHARACTERS,
    safe_excerpt,
    sanitise_prompt_input,
)
from tests.unit.core.secret_samples import GENERATED, GITHUB, OPENAI


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        pytest.param("a\x00b\x1bc\x7fd\x9be", "abcde", id="control characters"),
        pytest.param("a\tb\nc", "a\tb\nc", id="tab and newline stay"),
        pytest.param("a\r\nb\rc\x85d\u2028e\u2029f", "a\nb\nc\nd\ne\nf", id="line ends"),
        pytest.param("a\u202eb\u2066c\u200fd\u061ce", "abcde", id="direction"),
        pytest.param("a\u200bb\u200dc\ufeffd\u2060e\u00adf", "abcdef", id="no width"),
        pytest.param("a\U000e0041\U000e0042b\U000e0100c", "abc", id="tags"),
        pytest.param("a\ud800b", "ab", id="half a character"),
        pytest.param("a\ufe00b", "ab", id="hidden selector"),
        pytest.param("grüße 日本 ❤\ufe0f 😀", "grüße 日本 ❤\ufe0f 😀", id="other languages stay"),
    ],
)
def test_prompt_input_loses_what_cannot_be_seen(text: str, clean: str) -> None:
    assert sanitise_prompt_input(text) == clean


def test_prompt_input_of_exactly_the_limit_is_not_cut() -> None:
    text = "x" * PROMPT_LIMIT_CHARACTERS

    assert sanitise_prompt_input(text) == text


def test_longer_prompt_input_is_cut_visibly() -> None:
    cut = sanitise_prompt_input("x" * (PROMPT_LIMIT_CHARACTERS + 1))

    assert len(cut) == PROMPT_LIMIT_CHARACTERS
    assert cut.endswith("x" + CUT_SUFFIX)


def test_the_limit_may_be_chosen() -> None:
    assert sanitise_prompt_input("x" * 100, limit=20) == "x" * (20 - len(CUT_SUFFIX)) + CUT_SUFFIX


def test_a_limit_without_room_for_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="limit must be at least"):
        sanitise_prompt_input("x", limit=len(CUT_SUFFIX) - 1)


@given(st.text(st.characters()), st.integers(len(CUT_SUFFIX), 40))
def test_sanitising_prompt_input_twice_is_doing_it_once(text: str, limit: int) -> None:
    clean = sanitise_prompt_input(text, limit=limit)

    assert sanitise_prompt_input(clean, limit=limit) == clean
    assert len(clean) <= limit
    clean.encode()


def test_an_excerpt_finds_secrets_behind_unseen_characters() -> None:
    hidden = OPENAI[:6] + "\u200b" + OPENAI[6:]

    assert safe_excerpt(f"key {hidden}", limit=100) == f"key {MASK}"


def test_an_excerpt_is_masked_before_it_is_cut() -> None:
    text = "x" * 70 + " " + GENERATED

    assert GENERATED[:5] not in safe_excerpt(text, limit=90)


@pytest.mark.parametrize("before", [" ", "&"], ids=["a space", "no space anywhere"])
def test_an_excerpt_never_shows_the_first_half_of_a_key(before: str) -> None:
    # All before the key is masked away, and the key is cut too short to be known as one.
    masked_away = "password=" + "x" * (SCAN_LIMIT_CHARACTERS - 20)

    excerpt = safe_excerpt(masked_away + before + GITHUB, limit=500)

    assert GITHUB[:4] not in excerpt
    assert excerpt.endswith(CUT_SUFFIX)


def test_an_excerpt_of_an_endless_text_is_short_and_says_so() -> None:
    excerpt = safe_excerpt("word " * 1_000_000, limit=500)

    assert len(excerpt) == 500
    assert excerpt.endswith(CUT_SUFFIX)
