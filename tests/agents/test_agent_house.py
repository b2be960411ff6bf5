"""Where an agent lives: what only the process itself can tell of it."""

import asyncio
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from longshore.core.agents.plan import AgentPlan
from longshore.runners.agent.house import House
from longshore.runners.agent.places import Place
from longshore.runners.channel import Channel

GET_DUMPABLE, SET_DUMPABLE = 3, 4


@pytest.fixture
def prctl() -> Iterator[Any]:
    call = ctypes.CDLL(None).prctl
    before = call(GET_DUMPABLE, 0, 0, 0, 0)
    call(SET_DUMPABLE, 1, 0, 0, 0)
    yield call
    call(SET_DUMPABLE, before, 0, 0, 0)


# From outside, root can look into any process, and the tests may be run by it.
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hide a process's memory")
def test_the_child_hides_its_memory_before_the_credential_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prctl: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)  # the house sets it
    access = {
        "credential": {"kind": "api_key", "secret": "sk"},
        "baseUrl": None,
        "workspace": str(tmp_path / "work"),
    }
    order = {
        "task_id": "job_a",
        "job_id": "job",
        "attempt": 1,
        "folder": str(tmp_path),
        "feedback": None,
        "previous_output": None,
        "dependency_outputs": {},
        "checkpoints": {},
        "agent": access,
        "environment": {},
    }
    house = House(order, AgentPlan(steps=()), cast("Channel", None), Place(folder=tmp_path))

    async def open_it() -> int:
        async with house:
            return int(prctl(GET_DUMPABLE, 0, 0, 0, 0))

    assert asyncio.run(open_it()) == 0
