"""Every fault can be planted, and one of them is found here."""

import ast

import pytest

from tests.planting import undefined_names
from tests.power.planted_faults import FAULTS, Fault, violation_of


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_changes_its_modules(fault: Fault) -> None:
    for change in fault.changes:
        text = change.file().read_text(encoding="utf-8")
        changed = change.applied(text, fault=fault.name)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        compile(changed, change.at, "exec")
        assert undefined_names(changed) == set()


def test_power_cuts_reveal_a_blob_that_is_not_synced() -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == "the file of a blob is not synced")

    seen = violation_of(fault, cuts=60)

    assert seen is not None
    assert "blob" in seen
