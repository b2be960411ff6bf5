"""The planted faults can be planted, and one of them is seen to be found."""

import pytest

from tests.power.planted import FAULTS, ROOT, Fault, found


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: one.name)
def test_what_a_fault_replaces_is_there_once(one: Fault) -> None:
    for edit in one.edits:
        source = (ROOT / "src" / "longshore" / edit.path).read_text(encoding="utf-8")
        assert source.count(edit.text) == 1


def test_a_blob_that_is_not_synced_is_found_out() -> None:
    (one,) = (one for one in FAULTS if one.name == "the file of a blob is not synced")

    seen = found(one, cuts=60)

    assert seen is not None
    assert "blob" in seen
