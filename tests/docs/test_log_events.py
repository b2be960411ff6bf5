"""The reference of log events lists every event of the package, with its levels and fields."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.docs.log_events import log_calls

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "log-events.md"
ROW = re.compile(r"^\| `([a-z_.]+)` \| ([a-z, ]+) \|(.*?)\| (.+) \|$")
Events = dict[str, tuple[set[str], set[str]]]


def _documented() -> tuple[Events, Mapping[str, str]]:
    events: Events = {}
    when: dict[str, str] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        if (row := ROW.match(line)) is not None:
            events[row[1]] = set(row[2].split(", ")), set(re.findall(r"`(\w+)`", row[3]))
            when[row[1]] = row[4]
    return events, when


def _in_source() -> Events:
    events: Events = {}
    for call in log_calls():
        levels, fields = events.setdefault(call.name, (set(), set()))
        levels.add(call.level)
        fields |= call.fields
    return events


def test_every_log_event_is_documented_with_its_levels_and_fields() -> None:
    documented, when = _documented()

    assert documented == _in_source()
    assert all(when.values())


def test_log_events_are_sorted_and_named_as_a_noun_and_a_verb() -> None:
    documented, _ = _documented()

    assert list(documented) == sorted(documented)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*", name) for name in documented)
    assert not [name for name in documented if name.endswith((".error", ".failure"))]
