"""Overflow: what leaves a big event, and that it comes back whole."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.events.overflow import (
    EVENT_SIZE_LIMIT_BYTES,
    LARGE_FIELDS,
    Overflow,
    join_overflow,
    payload_key,
    split_overflow,
)

KEY = "events/job-a/e-1-payload.json"
TOO_BIG = EVENT_SIZE_LIMIT_BYTES + 1

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
property_names = st.sampled_from([*LARGE_FIELDS, "requestId", "state"]) | st.text(max_size=6)


def split_big(properties: dict[str, object], *, bucket: str | None = None):
    return split_overflow(
        properties, entity_id="job-a", event_id="e-1", size=TOO_BIG, bucket=bucket
    )


def test_an_event_of_exactly_the_limit_is_left_whole() -> None:
    properties = {"output": "x", "state": "done"}

    kept, overflow = split_overflow(
        properties, entity_id="job-a", event_id="e-1", size=EVENT_SIZE_LIMIT_BYTES
    )

    assert (kept, overflow) == (properties, None)


def test_a_bigger_event_carries_a_reference_in_place_of_its_large_fields() -> None:
    kept, overflow = split_big({"output": "x", "tasks": [1], "state": "done"}, bucket="b")

    assert kept == {"state": "done", "_s3Overflow": {"bucket": "b", "key": KEY}}
    assert overflow == Overflow(key=KEY, fields={"output": "x", "tasks": [1]})


def test_every_large_field_moves() -> None:
    kept, overflow = split_big(dict.fromkeys(LARGE_FIELDS, "x"))

    assert overflow is not None
    assert (set(kept), set(overflow.fields)) == ({"_s3Overflow"}, set(LARGE_FIELDS))


def test_the_bucket_is_left_out_where_there_is_none() -> None:
    kept, _ = split_big({"output": "x"})

    assert kept == {"_s3Overflow": {"key": KEY}}


def test_an_event_with_nothing_large_to_move_is_left_whole() -> None:
    properties = {"error": "x" * 10, "state": "failed"}

    assert split_big(properties) == (properties, None)


def test_an_event_that_was_split_before_is_left_as_it_is() -> None:
    once, _ = split_big({"output": "x"})

    assert split_big({**once, "input": "y"}) == ({**once, "input": "y"}, None)


def test_a_lower_limit_moves_sooner() -> None:
    _, overflow = split_overflow(
        {"output": "x"}, entity_id="job-a", event_id="e-1", size=11, limit=10
    )

    assert overflow is not None


def test_the_callers_properties_are_never_changed() -> None:
    properties = {"output": "x", "state": "done"}

    kept, _ = split_big(properties)
    kept["state"] = "other"
    whole, _ = split_overflow(properties, entity_id="job-a", event_id="e-1", size=1)
    whole["state"] = "other"
    joined = join_overflow(kept, {"output": "x"})
    joined["output"] = "other"

    assert properties == {"output": "x", "state": "done"}


def test_the_key_of_the_payload_is_found_again() -> None:
    kept, overflow = split_big({"output": "x"}, bucket="b")

    assert overflow is not None
    assert payload_key(kept) == overflow.key


def test_whole_properties_need_no_payload() -> None:
    assert payload_key({"output": "x"}) is None


@given(st.dictionaries(property_names, json_values), st.none() | st.text())
def test_what_was_split_joins_to_what_it_was(properties, bucket) -> None:
    kept, overflow = split_big(properties, bucket=bucket)

    restored = kept if overflow is None else join_overflow(kept, overflow.fields)

    assert restored == properties
