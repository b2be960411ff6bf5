"""The planted faults can be planted, and one of them is seen to be found."""

import ast

import pytest

from tests.power.planted_faults import FAULTS, Fault, found


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: one.name)
def test_a_fault_can_be_planted_and_changes_its_modules(one: Fault) -> None:
    for change in one.changes:
        text = change.file().read_text(encoding="utf-8")
        changed = change.applied(text, fault=one.name)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        compile(changed, change.at, "exec")


def test_a_blob_that_is_not_synced_is_found_out() -> None:
    (one,) = (one for one in FAULTS if one.name == "the file of a blob is not synced")

    seen = found(one, cuts=60)

    assert seen is not None
    assert "blob" in seen
