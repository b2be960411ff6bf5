"""Large fields of events: which fields are moved out, and that they can be joined again."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.events.codec import (
    EVENT_SIZE_LIMIT_BYTES,
    LARGE_FIELDS,
    REFERENCE_FIELD,
    join_overflow,
    overflow_key,
    overflow_of,
)

KEY = "events/job-a/e-1-payload.json"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
property_names = st.sampled_from([*LARGE_FIELDS, "requestId", "state"]) | st.text(max_size=6)


def overflow_of_big(properties: dict[str, object]) -> dict[str, object] | None:
    return overflow_of(properties, limit=0)


def test_an_event_of_exactly_the_limit_stays_whole() -> None:
    text = "x" * (EVENT_SIZE_LIMIT_BYTES - len('{"output":""}'))

    assert overflow_of({"output": text}) is None
    assert overflow_of({"output": text + "x"}) == {"output": text + "x"}


def test_the_large_fields_of_a_bigger_event_are_moved_out() -> None:
    overflow = overflow_of_big({"output": "x", "tasks": [1], "state": "done"})

    assert overflow == {"output": "x", "tasks": [1]}


def test_every_large_field_is_moved_out() -> None:
    overflow = overflow_of_big(dict.fromkeys(LARGE_FIELDS, "x"))

    assert overflow is not None
    assert set(overflow) == set(LARGE_FIELDS)


def test_an_event_without_large_fields_stays_whole() -> None:
    assert overflow_of_big({"error": "x" * 10, "state": "failed"}) is None


def test_an_event_whose_fields_were_moved_out_already_stays_as_it_is() -> None:
    assert overflow_of_big({"state": "done", REFERENCE_FIELD: {"key": KEY}}) is None


def test_a_lower_limit_moves_fields_of_smaller_events() -> None:
    assert overflow_of({"output": "x"}, limit=13) is not None
    assert overflow_of({"output": "x"}, limit=14) is None


def test_joining_does_not_change_the_properties_of_the_caller() -> None:
    properties = {"state": "done", REFERENCE_FIELD: {"key": KEY}}

    join_overflow(properties, {"output": "x"})

    assert properties == {"state": "done", REFERENCE_FIELD: {"key": KEY}}


def test_the_key_of_the_moved_fields_is_read_from_the_properties() -> None:
    assert overflow_key({REFERENCE_FIELD: {"bucket": "b", "key": KEY}}) == KEY


def test_whole_properties_have_no_key_of_moved_fields() -> None:
    assert overflow_key({"output": "x"}) is None


@given(st.dictionaries(property_names, json_values))
def test_moved_fields_join_to_the_original_properties(properties) -> None:
    fields = overflow_of_big(properties) or {}
    carried = {name: value for name, value in properties.items() if name not in fields}

    assert join_overflow(carried | {REFERENCE_FIELD: {"key": KEY}}, fields) == properties
