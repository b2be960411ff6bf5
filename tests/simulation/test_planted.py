"""Every bug can be planted, and one of each kind is found here."""

import ast

import pytest

from tests.planting import undefined_names
from tests.simulation.planted_bugs import BUGS, Bug, found_at

QUICKLY_DETECTED = {
    "a fence is used twice": "invariant 2",
    "an attempt number is used twice after a resume": "invariant 2",
    "only the first of several dependents is notified": "still waits for it",
    "a paused queue is served": "is paused",
    "a restored store continues in the epoch of the backup": "before the restore",
    "what a dead worker had begun in its slots uses no attempt": "had begun, but was released",
    "a step in a slot is confirmed before it is saved": "was saved, but attempt",
    "a health problem is reported at every check": "which watcher-",
    # A history with a missing event, or one that is invalid without it.
    "the relay counts events as published when the bus did not answer": "invariant ",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_changes_its_module(bug: Bug) -> None:
    text = bug.change.file().read_text(encoding="utf-8")
    changed = bug.change.applied(text, fault=bug.name)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    compile(changed, bug.at, "exec")
    assert undefined_names(changed) == set()


def test_no_two_bugs_have_the_same_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("name", QUICKLY_DETECTED)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = (bug for bug in BUGS if bug.name == name)
    runs, what = found_at(bug, 100)
    assert runs is not None, what
    assert QUICKLY_DETECTED[name] in what
