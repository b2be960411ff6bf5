"""Children of slots: what a task sees, what it sends, and what its end is."""

import asyncio
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Isolation
from tests.execution.conftest import scenario
from tests.execution.slots import BOTH, a_task, harness


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_has_its_result_as_json(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        for number, value in enumerate([None, 3, "text", {"a": [1.5]}], start=1):
            await here.run(slot, a_task("echo", value, number=number, isolation=isolation))
            assert here.recorder.result(number) == value
