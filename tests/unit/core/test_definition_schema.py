"""The JSON Schema and the reader accept the same definitions, as far as a schema can express."""

import json
import re
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from docs.generate import FOLDER
from longshore.core.definitions.definition import Definition, ResourceLimits
from longshore.core.definitions.reader import (
    FIELDS,
    attribute_of,
    definition_schema,
    longshore_yaml_schema,
    read_definition,
    read_file_document,
)
from longshore.core.text.durations import format_duration, parse_duration
from longshore.services.documents import definition_document, to_dict

ROOT = Path(__file__).parents[3]
FILE = jsonschema_rs.Draft202012Validator(definition_schema())
LONGSHORE_YAML = jsonschema_rs.Draft202012Validator(longshore_yaml_schema())
DURATION = definition_schema()["$defs"]["timeout"]["anyOf"][0]["pattern"]
# Rules between two fields, times that are too long or too short, options that are no JSON, and that
# 1.0 is no whole number here.
BEYOND_A_SCHEMA = re.compile(
    r"cap must be no shorter|isolation 'pool' is for|warning_within must be no shorter"
    r"|is not a duration|must be greater than zero|cpu must be at least"
    r"|is defined twice|expected a finite number|expected valid Unicode"
)
A = {"name": "a", "runner": "command"}


def accepted(document: Any, *, alone: bool = True) -> bool:
    return not problems_of(document, alone=alone)


def problems_of(document: Any, *, alone: bool = True) -> list[str]:
    return [item.message for item in read_file_document(document, allow_single=alone)[1]]


VALID = [
    A,
    {**A, "$schema": "definition.schema.json"},
    {
        "name": "x" * 64,
        "runner": "python",
        "options": {"a": [1, None, {"b": 1.5}]},
        "description": "für alle",
        "queue": "q-1_",
        "priority": "high",
        "timeout": " 1h30m ",
        "retry": {"maxAttempts": 1, "base": 0.5, "cap": "PT1M"},
        "retryOnTimeout": True,
        "retryableExitCodes": [1, 255],
        "requiresReview": False,
        "isolation": "spawn",
        "resources": {"cpu": 1, "memoryBytes": 2**24, "openFiles": 16, "fileBytes": 1},
        "pty": True,
        "health": {"longestRun": "2h", "healthyWithin": 1, "warningWithin": "9"},
    },
    # What is null is left out.
    {**dict.fromkeys(FIELDS), **A},
    {**A, "retryableExitCodes": [], "retry": {}, "resources": {}, "options": {}},
    {"definitions": [A, {**A, "name": "b"}]},
    {"definitions": {"a": {"runner": "command"}, "b": {"runner": "python"}}},
    {"definitions": None},
    {"definitions": []},
    {"definitions": {}, "$schema": "x"},
]
INVALID = [
    *(None, [], [A], "a", 7, {}, {"name": "a"}, {"runner": "command"}),
    *({**A, "name": name} for name in ("", "a b", "x" * 65, "a\n", "ä", 1, None, ["a"])),
    *({**A, "runner": runner} for runner in ("steam", "Command", "", None, 1, ["command"])),
    *({**A, "options": options} for options in ([], "x", 1, True)),
    *({**A, "description": text} for text in (1, [], {}, False)),
    *({**A, "queue": name} for name in ("", "a.b", 1)),
    *({**A, "priority": priority} for priority in ("urgent", 1, True)),
    *({**A, "timeout": time} for time in (0, -1, "", "0s", "5 s", "-5s", "1x", "PT", "P", "ms")),
    *({**A, "timeout": time} for time in (True, [], "0h0m", "5m1h", "1h.5m", "0.0", "P0D", "٣s")),
    *({**A, "retry": retry} for retry in (3, [], {"maxAttempts": 0}, {"attempts": 1})),
    *({**A, "retry": {"maxAttempts": number}} for number in ("3", 1.5, True, None)),
    *({**A, "retry": {"base": time}} for time in ("0s", None, [])),
    *(
        {**A, name: flag}
        for name in ("pty", "requiresReview", "retryOnTimeout")
        for flag in (1, "")
    ),
    *({**A, "retryableExitCodes": codes} for codes in ([0], [256], ["1"], 1, [True], [1.5])),
    *({**A, "isolation": kind} for kind in ("thread", 1)),
    *({**A, "resources": limits} for limits in (1, {"memory": 1}, {"memoryBytes": 2**24 - 1})),
    *(
        {**A, "resources": limits}
        for limits in ({"openFiles": 15}, {"fileBytes": 0}, {"cpu": "0s"})
    ),
    *({**A, "health": health} for health in (1, {"longestRun": 0}, {"healthy": "1s"})),
    *({**A, "version": 1}, {**A, "Runner": "command"}, {**A, "definitions": []}),
    *({"definitions": some} for some in (1, "a", [1], [None], {"a": None}, {"a b": A}, [{}])),
    *({"definitions": {"a": item}} for item in (A, {}, {"runner": "x"}, [])),
    *({"definitions": {}, "tasks": []}, {"definitions": [{**A, "colour": "red"}]}),
    {"$schema": "x", "definitions": {"$schema": "x"}},
]


def shown(document: Any) -> str:
    return ascii(document)[:60]


@pytest.mark.parametrize("document", VALID, ids=shown)
def test_what_is_right_passes_both(document: Any) -> None:
    assert problems_of(document) == []
    FILE.validate(document)


@pytest.mark.parametrize("document", INVALID, ids=shown)
def test_what_is_wrong_passes_neither(document: Any) -> None:
    assert not accepted(document)
    assert not FILE.is_valid(document)


@pytest.mark.parametrize("document", [*VALID, *INVALID], ids=shown)
def test_longshore_yaml_may_be_empty_and_has_no_definition_by_itself(document: Any) -> None:
    right = document is None or accepted(document, alone=False)

    assert LONGSHORE_YAML.is_valid(document) == right
    assert right == (document in (None, {}) or (document in VALID and "definitions" in document))


ONLY_HERE = [
    ({**A, "retry": {"base": "2s", "cap": "1s"}}, "cap must be no shorter"),
    ({**A, "isolation": "pool"}, "isolation 'pool' is for python tasks"),
    ({**A, "health": {"healthyWithin": 2, "warningWithin": 1}}, "warning_within must be"),
    ({**A, "resources": {"cpu": "1ms"}}, "cpu must be at least one second"),
    ({**A, "timeout": "9999999999d"}, "is not a duration"),
    ({**A, "timeout": "0.0000001s"}, "must be greater than zero"),
    ({"definitions": [A, A]}, "is defined twice"),
    ({**A, "retry": {"maxAttempts": 2.0}}, "expected a whole number"),
]


@pytest.mark.parametrize(("document", "expected"), ONLY_HERE, ids=shown)
def test_what_a_schema_cannot_say_is_refused_all_the_same(document: Any, expected: str) -> None:
    (message,) = problems_of(document)

    assert expected in message
    FILE.validate(document)


# Values that mean something somewhere, and that are wrong in most other places.
_WORDS = sorted({item for field in FIELDS.values() for item in field.schema.get("enum", ())})
_TIMES = ["1s", "90", "1h30m", "250ms", "PT5M", "p1dt2h", "0s", "1m1h", " 5s ", "P", "0.5m", "1e3"]
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*_WORDS, *_TIMES, "", "a", "a b", "x" * 64, "x" * 65]),
    st.sampled_from([0, 1, -1, 15, 16, 255, 256, 2**24 - 1, 2**24, 10**30, 0.5, -0.5, 1.5]),
    st.lists(st.sampled_from([0, 1, 255, 256, "1", None, True]), max_size=3),
)
_INNER = sorted({item for field in FIELDS.values() for item in field.schema.get("properties", ())})
_OBJECTS = st.dictionaries(st.sampled_from([*_INNER, "colour"]), _VALUES, max_size=3)
_DEFINITIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "a b", 1]), "runner": st.sampled_from(["python", "x"])},
    optional={name: _VALUES | _OBJECTS for name in [*FIELDS, "colour"] if name not in A},
)
_DOCUMENTS = st.one_of(
    _DEFINITIONS,
    st.fixed_dictionaries({"definitions": st.lists(_DEFINITIONS, max_size=2)}),
    st.fixed_dictionaries({"definitions": st.dictionaries(st.just("a"), _DEFINITIONS)}),
)


@given(_DOCUMENTS)
def test_both_say_the_same_of_anything_but_for_what_a_schema_cannot_say(document: Any) -> None:
    problems = problems_of(document)

    if FILE.is_valid(document):
        assert [item for item in problems if not BEYOND_A_SCHEMA.search(item)] == []
    else:
        assert problems


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=10**6)))
def test_every_duration_as_it_is_written_passes_the_schema(duration: timedelta) -> None:
    assert FILE.is_valid({**A, "timeout": format_duration(duration)})


# The condition that there is more than nothing is left to the last line.
_TEXTS = (
    DURATION.replace("(?=[^1-9]*[1-9])", "").replace("[0-9]+", "[0-9]{1,5}").replace(r"\s", " ")
)


@given(st.from_regex(_TEXTS, fullmatch=True).filter(lambda text: re.search("[0-9]", text)))
@example("P1DT")
def test_every_text_that_the_schema_takes_for_a_duration_is_one(text: str) -> None:
    assert parse_duration(text) >= timedelta(0)
    assert FILE.is_valid({**A, "timeout": text}) == bool(re.search("[1-9]", text))


@pytest.mark.parametrize("attribute", ["memory_bytes", "open_files", "file_bytes"])
def test_the_least_that_the_schema_allows_is_the_least_that_a_child_needs(attribute: str) -> None:
    wire = re.sub("_(.)", lambda result: result[1].upper(), attribute)
    least = definition_schema()["$defs"]["resources"]["properties"][wire]["minimum"]

    assert ResourceLimits(**{attribute: least})
    with pytest.raises(ValueError, match=f"at least {least}"):
        ResourceLimits(**{attribute: least - 1})


def test_every_attribute_of_a_definition_has_a_field_that_is_described() -> None:
    attributes = {item.name for item in fields(Definition)} - {"version"}

    assert {attribute_of(name) for name in FIELDS} == attributes
    assert all(len(field.schema["description"]) > 5 for field in FIELDS.values())
    needed = {
        item.name for item in fields(Definition) if item.default is item.default_factory is MISSING
    }
    assert {
        attribute_of(name)
        for name in definition_schema()["$defs"]["definitionWithName"]["required"]
    } == needed


@pytest.mark.parametrize(
    "document", [item for item in VALID if "definitions" not in item], ids=shown
)
def test_a_definition_that_is_shown_passes_again(document: dict[str, Any]) -> None:
    (definition,), _ = read_file_document(document, allow_single=True)

    document = to_dict(definition_document(definition))
    del document["version"]

    FILE.validate(document)
    assert read_definition(document) == definition


@pytest.mark.parametrize("name", ["definition.schema.json", "longshore.schema.json"])
def test_the_schema_that_is_handed_out_is_a_schema(name: str) -> None:
    written = json.loads((FOLDER / name).read_text(encoding="utf-8"))

    assert written["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(written)


EXAMPLES = sorted(path for path in (ROOT / "examples" / "shop").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_passes_the_schema_that_it_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    if named is None:
        assert "tasks:" in text
        return

    document = json.loads((path.parent / named[1]).read_text(encoding="utf-8"))

    jsonschema_rs.validator_for(document).validate(yaml.safe_load(text))


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deep": _nested(200)}, "expected at most 100 levels"),
        ({"number": float("nan")}, "expected a finite number, not nan"),
        ({"value": {1, 2}}, "expected a JSON value, not {1, 2}"),
        ({1: "one"}, "expected text as a key (put it in quotes), not 1"),
        ({"nested": {2: "two"}}, "expected text as a key (put it in quotes), not 2"),
        ({"text": "\ud800"}, "expected valid Unicode"),
    ],
    ids=["too deep", "not a number", "not JSON", "key is no text", "inner key", "half a character"],
)
def test_options_that_are_not_plain_json_are_refused(options: Any, message: str) -> None:
    problems = problems_of({**A, "options": options})

    assert [problem for problem in problems if message in problem]
