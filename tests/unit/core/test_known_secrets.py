"""Secrets whose values are known are found in texts, JSON values and streams."""

import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.text.known_secrets import SECRET_MIN_CHARACTERS, KnownSecrets
from longshore.core.text.sanitise import CUT_SUFFIX, MASK

TOKEN = "correct horse/battery"
PEM = "first line of it\nsecond line of it\nend"
QUOTED = 'a "quoted" \\ näme'
SECRETS = KnownSecrets([TOKEN, PEM, QUOTED])


@pytest.mark.parametrize("value", [TOKEN, PEM, QUOTED])
@pytest.mark.parametrize(
    "write",
    [
        str,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: quote(text, safe=""),
        lambda text: text.replace("\n", "\r\n"),
    ],
)
def test_a_value_is_found_in_each_of_its_forms(value, write) -> None:  # type: ignore[no-untyped-def]
    masked = SECRETS.mask(f"<{write(value)}>")

    assert MASK in masked
    assert "horse" not in masked
    assert "quoted" not in masked


def test_each_long_line_of_a_value_is_found_alone() -> None:
    assert SECRETS.mask("> second line of it\n> end\n") == f"> {MASK}\n> end\n"


def test_a_value_that_was_cut_is_masked() -> None:
    assert SECRETS.mask(f"failed with correct ho{CUT_SUFFIX}") == f"failed with {MASK}{CUT_SUFFIX}"
    assert SECRETS.mask(f"failed{CUT_SUFFIX}") == f"failed{CUT_SUFFIX}"


def test_all_texts_of_a_json_value_are_masked() -> None:
    value = {"a": [TOKEN, 1, None, {"b": f"x {TOKEN}"}], TOKEN: {TOKEN: True}}

    assert SECRETS.mask_json(value) == {
        "a": [MASK, 1, None, {"b": f"x {MASK}"}],
        MASK: {MASK: True},
    }
    assert SECRETS.mask_json(TOKEN) == MASK


def test_a_json_value_may_be_as_deep_as_it_can_be_parsed() -> None:
    depth = 900
    value = json.loads("[" * depth + json.dumps(TOKEN) + "]" * depth)

    assert json.dumps(SECRETS.mask_json(value)) == "[" * depth + f'"{MASK}"' + "]" * depth


def _stream(secrets: KnownSecrets, parts: list[bytes]) -> bytes:
    whole, rest = b"", b""
    for part in parts:
        masked, rest = secrets.mask_part(rest + part)
        whole += masked
    return whole + secrets.mask_end(rest)


@given(
    texts=st.lists(st.sampled_from(["correct", TOKEN, "x", " horse/", "c", "line\n", PEM])),
    cuts=st.lists(st.integers(0, 200)),
)
def test_a_stream_has_no_secret_however_it_is_split(texts: list[str], cuts: list[int]) -> None:
    data = "".join(texts).encode()
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    parts = [data[start:end] for start, end in itertools.pairwise(edges)]

    masked = _stream(SECRETS, parts)

    assert TOKEN.encode() not in masked
    assert b"second line of it" not in masked
    if all(text not in (TOKEN, PEM) for text in texts):
        rest = SECRETS.mask_end(SECRETS.mask_part(data)[1])
        assert masked == data or MASK.encode() in rest


def test_a_secret_that_begins_another_does_not_hide_it() -> None:
    secrets = KnownSecrets(["abcdefgh", "abcdefgh-the-longer-one"])

    assert _stream(secrets, [b"<abcdefgh", b"-the-longer-one>"]) == f"<{MASK}>".encode()
    assert _stream(secrets, [b"<abcdefgh", b">"]) == f"<{MASK}>".encode()
    assert _stream(secrets, [b"<abcdefgh-the-lo"]) == f"<{MASK}".encode() + b"-the-lo"


def test_the_end_of_one_secret_that_begins_another_stays_with_it() -> None:
    secrets = KnownSecrets(["wxyz-abcd", "abcd-1234"])

    assert _stream(secrets, [b"wxyz-abcd", b"!"]) == f"{MASK}!".encode()


def test_a_secret_that_was_being_printed_at_the_end_is_masked() -> None:
    assert _stream(SECRETS, [TOKEN.encode()[:-1]]) == MASK.encode()
    assert _stream(SECRETS, [TOKEN.encode()[: SECRET_MIN_CHARACTERS - 1]]) == b"correct"


@given(st.integers(64 * 1024 - 30, 64 * 1024 + 5), st.integers(0, 40))
def test_long_data_is_masked_across_the_borders_of_its_parts(before: int, between: int) -> None:
    data = b"x" * before + TOKEN.encode() + b"y" * between + TOKEN.encode() + b"z" * 70_000
    mask = MASK.encode()

    expected = b"x" * before + mask + b"y" * between + mask + b"z" * 70_000
    assert SECRETS.mask_data(bytearray(data)) == expected


def test_the_beginning_of_a_secret_at_the_end_of_long_data_is_none() -> None:
    data = b"x" * 70_000 + TOKEN[:-1].encode()

    assert SECRETS.mask_data(data) == data
