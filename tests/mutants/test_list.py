"""The catalogue of planted faults matches the code. No fault is tried here."""

import ast
from collections import Counter
from importlib import import_module

import pytest

from tests.mutants.catalogue import FAULTS
from tests.mutants.fault import BACKEND_PARTS, Fault, Part
from tests.planting import undefined_names

_FEWEST = 6


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_changes_its_module(fault: Fault) -> None:
    text = fault.change.file().read_text()

    changed = fault.change.applied(text, fault=fault.name)

    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    compile(changed, fault.at, "exec")
    assert undefined_names(changed) == set()


@pytest.mark.parametrize("part", Part)
def test_every_part_has_enough_faults(part: Part) -> None:
    assert len([fault for fault in FAULTS if fault.part is part]) >= _FEWEST


def test_no_two_faults_have_the_same_name() -> None:
    names = Counter(fault.name for fault in FAULTS)

    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize(
    ("backend", "ports"),
    [
        ("adapters.sqlite", BACKEND_PARTS - {Part.BUS} | {Part.BACKUPS}),
        ("testing.memory", BACKEND_PARTS),
    ],
)
def test_every_port_of_a_backend_has_faults_in_it(backend: str, ports: frozenset[Part]) -> None:
    parts = {fault.part for fault in FAULTS if fault.at.startswith(f"{backend}.")}

    assert parts == ports


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_names_a_test_that_exists(fault: Fault) -> None:
    file, *names = fault.caught_by.split("::")

    target = import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}")
    for name in names:
        target = getattr(target, name)

    assert callable(target)
