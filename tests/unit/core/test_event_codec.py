"""Events there and back: every type as it was, documents, and what older writers leave out."""

import dataclasses
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.core.documents import Document
from longshore.core.events import codec
from longshore.core.events import types as e
from longshore.core.events.codec import WireObject
from longshore.core.events.event import Event, EventContext
from tests.unit.core.event_samples import AT, COMPLETED, IDS, JOB, STARTED, an_event, inline

# Strategies by type hint, so that an event type or a field that is added is covered by itself.

MARKED = st.sampled_from(["_ref", "_literal", "a", "é"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MARKED, inner, max_size=2),
    max_leaves=5,
)
references = st.builds(Document, key=st.text(min_size=1, max_size=9), size=st.integers(0, 2**40))
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=9),
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.integers(0, 2**42).map(lambda ms: datetime.fromtimestamp(0, UTC) + ms * TICK),
    timedelta: st.integers(-(2**40), 2**40).map(lambda ms: ms * TICK),
    Document: json_values.map(inline) | references,
    dict[str, str | None]: st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3)),
}
TICK = timedelta(milliseconds=1)
# No list of keys is None; the wire has one form for both.
DEPENDENCIES = st.none() | st.lists(st.text(max_size=3), min_size=1).map(inline) | references


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is UnionType:
        return st.one_of(st.none(), *(values_of(item) for item in get_args(hint)[:-1]))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    return BY_HINT[hint] if hint in BY_HINT else instances_of(hint)


def instances_of(of: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(of)
    fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(of)}
    if of is e.TaskPending:
        fields["depends_on"] = DEPENDENCIES
    return st.builds(of, **fields)


def events_of(body: type[e.EventBody]) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        entity_type=st.sampled_from(e.EntityType),
        entity_id=st.text(max_size=9),
        tenant=st.text(max_size=9),
        app=st.text(max_size=9),
        sequence=st.integers(1, 2**53),
        at=BY_HINT[datetime],
        body=instances_of(body),
        context=instances_of(EventContext),
    )


every_type = pytest.mark.parametrize("body", codec.EVENT_TYPES.values(), ids=codec.EVENT_TYPES)


@every_type
@settings(max_examples=40)
@given(st.data())
def test_an_event_comes_back_from_json_as_it_was(
    body: type[e.EventBody], data: st.DataObject
) -> None:
    event = data.draw(events_of(body))

    text = json.dumps(codec.to_wire(event, environment="prod", ttl_at=AT))

    assert codec.from_wire(json.loads(text)) == event


def emptied(body: e.EventBody) -> e.EventBody:
    """Returns the body without its large fields, by the type hints."""
    blank = {tuple: (), dict: {}, UnionType: None}
    large = {"output", "tasks", "new_tasks", "task_statuses"}
    hints = get_type_hints(type(body))
    return replace(
        body,
        **{name: blank[get_origin(hint)] for name, hint in hints.items() if name in large},
    )


@every_type
@settings(max_examples=15)
@given(st.data())
def test_large_fields_that_were_moved_out_are_empty_until_they_are_joined_again(
    body: type[e.EventBody], data: st.DataObject
) -> None:
    event = data.draw(events_of(body))
    whole = codec.properties_of(event)
    key, payload = "some/other", codec.overflow_of(whole, limit=0) or {}
    carried = {name: value for name, value in whole.items() if name not in payload}

    wire = codec.to_wire(replace(event, overflow=key), environment="prod")
    back = codec.from_wire(json.loads(json.dumps(wire)))

    assert wire["properties"] == carried | {"_s3Overflow": {"key": key}}
    assert back == replace(event, body=emptied(event.body), overflow=key)
    joined = codec.join_overflow(wire["properties"], payload)
    assert codec.body_from_properties(event.type, joined) == (event.body, None)


def test_large_fields_that_are_there_are_read_although_the_reference_is_there_too() -> None:
    properties = codec.properties_of(an_event(JOB)) | {"_s3Overflow": {"bucket": "b", "key": "k"}}

    assert codec.body_from_properties(JOB.TYPE, properties) == (JOB, "k")


def test_a_document_kept_elsewhere_travels_as_a_reference() -> None:
    completed = replace(COMPLETED, output=Document(key="jobs/job-456/result.json", size=2048))

    properties = codec.properties_of(an_event(completed))

    assert properties["output"] == {"_ref": {"key": "jobs/job-456/result.json", "size": 2048}}


def test_a_result_that_looks_like_a_reference_does_not_become_one() -> None:
    forged = inline({"_ref": {"key": "jobs/of-another-tenant/result.json", "size": 5}})
    event = an_event(replace(COMPLETED, output=forged))

    back = codec.from_wire(codec.to_wire(event, environment="prod"))

    assert isinstance(back.body, e.TaskCompleted)
    assert back.body.output == forged


def test_a_result_with_such_a_name_among_others_travels_as_it_is() -> None:
    result = {"_ref": {"key": "k", "size": 5}, "_literal": 1}

    properties = codec.properties_of(an_event(replace(COMPLETED, output=inline(result))))

    assert properties["output"] == result
    assert codec.body_from_properties(COMPLETED.TYPE, properties) == (
        replace(COMPLETED, output=inline(result)),
        None,
    )


def test_no_result_and_a_result_of_null_are_different() -> None:
    none = an_event(replace(COMPLETED, output=None))
    null = an_event(replace(COMPLETED, output=Document(text="null", size=4)))

    assert "output" not in codec.properties_of(none)
    assert codec.properties_of(null)["output"] is None


def test_json_with_spaces_around_it_is_read() -> None:
    spaced = replace(COMPLETED, output=Document(text=' {"a": 1} ', size=10))

    assert codec.properties_of(an_event(spaced))["output"] == {"a": 1}


def test_text_that_has_no_bytes_stays_escaped() -> None:
    properties = codec.properties_of(an_event(COMPLETED)) | {"output": "\ud800"}

    body, _ = codec.body_from_properties(COMPLETED.TYPE, properties)

    assert isinstance(body, e.TaskCompleted)
    assert body.output == Document(text='"\\ud800"', size=8)


def test_what_is_not_known_or_derived_is_ignored() -> None:
    wire = codec.to_wire(an_event(STARTED), environment="prod", ttl_at=AT)
    for name in [name for name in wire if name.startswith(("GSI", "PK", "SK", "eventId", "ttl"))]:
        del wire[name]
    wire["receivedAt"] = 5
    wire["properties"]["colour"] = "red"

    assert codec.from_wire(wire) == an_event(STARTED)


@pytest.mark.parametrize(
    ("body", "name", "absent"),
    [
        pytest.param(e.TaskPending(**IDS, name="x"), "dependsOn", "depends_on", id="none"),
        pytest.param(e.TaskPending(**IDS, name="x"), "round", "round", id="default"),
        pytest.param(replace(COMPLETED, usage=e.Usage()), "usage", "usage", id="factory"),
    ],
)
def test_what_older_writers_leave_out_is_the_default(
    body: e.EventBody, name: str, absent: str
) -> None:
    properties = codec.properties_of(an_event(body))
    del properties[name]

    back, _ = codec.body_from_properties(body.TYPE, properties)

    assert getattr(back, absent) == getattr(body, absent)


@pytest.mark.parametrize("name", ["dueAt", "dependsOn"])
def test_a_null_in_place_of_an_optional_value_is_none(name: str) -> None:
    properties = codec.properties_of(an_event(e.TaskPending(**IDS, name="x"))) | {name: None}

    back, _ = codec.body_from_properties("Task Pending", properties)

    assert back == e.TaskPending(**IDS, name="x")


def test_a_whole_number_is_a_cost_too() -> None:
    properties = codec.properties_of(an_event(COMPLETED)) | {"usage": {"costUsd": 2}}

    body, _ = codec.body_from_properties(COMPLETED.TYPE, properties)

    assert isinstance(body, e.TaskCompleted)
    assert body.usage == e.Usage(cost_usd=2.0)


def test_a_type_hint_that_has_no_form_on_the_wire_is_found_at_once() -> None:
    odd = dataclasses.make_dataclass("Odd", [("names", set[str])])

    with pytest.raises(TypeError):
        WireObject(odd)


def test_every_event_type_is_known_by_its_name() -> None:
    assert {"Task Pending", "Job Created", "Message Rejected"} < codec.EVENT_TYPES.keys()
    assert all(name == body.TYPE for name, body in codec.EVENT_TYPES.items())
