"""Secrets in a mapping: masked by the names of its keys, and inside its texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.text.sanitise import MASK, MASK_DEPTH_LIMIT, mask_mapping
from tests.unit.core.secret_samples import GITHUB, OPENAI, fragments


def test_a_mapping_is_masked_by_the_names_of_its_keys() -> None:
    value = {
        "password": "hunter2",
        "dbPassword": "hunter2",
        "X-Api-Key": "abc",
        "Authorization": "Bearer abc",
        "refresh_token": 12345,
        "credentials": {"user": "bob", "key": "abc"},
        "secrets": ["a", "b"],
        "user": "bob",
        "max_tokens": 512,
    }

    masked = mask_mapping(value)

    hidden = set(value) - {"user", "max_tokens"}
    assert masked == {**dict.fromkeys(hidden, MASK), "user": "bob", "max_tokens": 512}


def test_secrets_inside_the_texts_of_a_mapping_are_masked() -> None:
    value = {"log": [f"used {OPENAI}", {"deep": ("password=x", 1)}], 3: f"key {GITHUB}"}

    masked = mask_mapping(value)

    assert masked == {
        "log": [f"used {MASK}", {"deep": (f"password={MASK}", 1)}],
        3: f"key {MASK}",
    }


@pytest.mark.parametrize("value", [None, True, False, ""])
def test_that_a_secret_is_missing_stays_visible(value: object) -> None:
    assert mask_mapping({"token": value}) == {"token": value}


@pytest.mark.parametrize("value", [None, True, 3, 2.5, b"bytes", [], {}, ()])
def test_other_values_are_left_as_they_are(value: object) -> None:
    masked = mask_mapping(value)

    assert masked == value
    assert type(masked) is type(value)


def test_a_text_alone_is_masked_too() -> None:
    assert mask_mapping("password=x") == f"password={MASK}"


def nested(depth: int) -> object:
    value: object = "plain"
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_is_followed_to_the_depth_limit_and_masked_below() -> None:
    assert mask_mapping(nested(MASK_DEPTH_LIMIT)) == nested(MASK_DEPTH_LIMIT)
    assert "plain" not in json.dumps(mask_mapping(nested(MASK_DEPTH_LIMIT + 1)))


def test_a_mapping_is_not_changed_in_place() -> None:
    value = {"token": "x", "list": ["password=x"]}

    mask_mapping(value)

    assert value == {"token": "x", "list": ["password=x"]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | fragments,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fragments, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_masking_a_mapping_twice_is_masking_it_once(value: object) -> None:
    masked = mask_mapping(value)

    assert mask_mapping(masked) == masked
