"""Agents have a keeper of their own: what they need is loaded once, and only where they are."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.process.runner import ProcessRunner
from longshore.adapters.system.clock import SystemClock
from longshore.core.definition import Definition, RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.ports.runner import Ending, WorkOrder
from tests.adapters.process.conftest import a_call, run, scenario

NOBODY = {"credential": {"kind": None, "secret": None}, "allowBypass": False}
TEMPLATE = ("longshore.runners.agent.template",)
AGENT = WorkOrder(
    task_id="job-a_a",
    job_id="job-a",
    key="a",
    tenant="acme",
    attempt=1,
    fence=1,
    definition=Definition(name="ask", runner=RunnerKind.AGENT, options={"prompt": "Do it."}),
    timeout=timedelta(minutes=1),
)


def runner_for_agents(folder: Path, **fields: Any) -> ProcessRunner:
    environment = {"PATH": "/usr/bin:/bin"}
    return ProcessRunner(folder, environment, SystemClock(), agent=NOBODY, **fields)


def has_no_credentials(ending: Ending) -> bool:
    """What an agent finds out that has come to its own code."""
    return ending.failure is not None and ending.failure.category is ErrorCategory.AUTH


@scenario
async def test_what_agents_need_is_not_loaded_before_the_first_of_them(tmp_path: Path) -> None:
    runner = runner_for_agents(tmp_path, agent_modules=TEMPLATE)
    try:
        await runner.open()
        ending, _ = await run(runner, a_call("add", 1))
        assert ending.failure is None
        assert runner.agent_keeper.process_id is None

        ending, _ = await run(runner, AGENT)

        assert has_no_credentials(ending), ending
        assert runner.agent_keeper.process_id not in (None, runner.keeper.process_id)
    finally:
        await runner.close()
    assert runner.agent_keeper.process_id is None


@scenario
async def test_what_agents_need_can_be_loaded_with_the_worker(tmp_path: Path) -> None:
    runner = runner_for_agents(tmp_path, agent_modules=TEMPLATE, preload=True)
    try:
        await runner.open()

        assert runner.agent_keeper.process_id is not None
    finally:
        await runner.close()


@scenario
async def test_what_cannot_be_loaded_is_left_to_the_child_to_tell(tmp_path: Path) -> None:
    runner = runner_for_agents(tmp_path, agent_modules=("no_such_module",))
    try:
        ending, _ = await run(runner, AGENT)

        assert has_no_credentials(ending), ending
    finally:
        await runner.close()
