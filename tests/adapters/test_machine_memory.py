"""How much memory there is to be had, by the machine and by the groups that hold it to less."""

import os
from pathlib import Path

import pytest

from longshore.adapters.system import machine_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MIB = 2**20


@pytest.fixture
def own_groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/pod/app", "pod/app/memory.max"),
        ("0::/pod/app", "pod/memory.max"),
        ("0::/pod/app", "memory.max"),
        ("0::/", "memory.max"),
        ("4:memory:/pod", "memory/pod/memory.limit_in_bytes"),
        ("4:cpu,memory:/elsewhere", "memory/memory.limit_in_bytes"),
    ],
)
def test_what_a_group_or_one_above_it_may_have_is_all_there_is(
    tmp_path: Path, own_groups: Path, line: str, file: str
) -> None:
    limit = tmp_path / "groups" / file
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{MIB}\n")
    own_groups.write_text(f"9:pids:/\n{line}\n")

    assert machine_memory(tmp_path / "groups", own_groups) == MIB


@pytest.mark.parametrize("text", ["max\n", f"{2**63 - 4096}\n"])
def test_a_group_without_a_limit_has_what_the_machine_has(
    tmp_path: Path, own_groups: Path, text: str
) -> None:
    (tmp_path / "memory.max").write_text(text)
    own_groups.write_text("0::/\n")

    assert machine_memory(tmp_path, own_groups) == MACHINE


def test_where_there_are_no_groups_there_is_what_the_machine_has(tmp_path: Path) -> None:
    assert machine_memory(tmp_path, tmp_path / "nothing") == MACHINE
