"""Agents have their own fork server, which loads their modules once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.runner import AttemptEnding, AttemptSpec
from tests.execution.conftest import a_call, run_attempt, scenario

NO_CREDENTIALS = {"credential": {"kind": None, "secret": None}, "allowBypass": False}
WARMUP_MODULES = ("longshore.execution.runners.agent.warmup",)
AGENT_SPEC = AttemptSpec(
    task_id="job-a_a",
    job_id="job-a",
    key="a",
    tenant="acme",
    attempt=1,
    fence=1,
    definition=Definition(name="ask", runner=RunnerKind.AGENT, options={"prompt": "Do it."}),
    timeout=timedelta(minutes=1),
)


def agent_runner(folder: Path, **fields: Any) -> ProcessRunner:
    environment = {"PATH": "/usr/bin:/bin"}
    return ProcessRunner(folder, environment, SystemClock(), agent_access=NO_CREDENTIALS, **fields)


def lacks_credentials(ending: AttemptEnding) -> bool:
    """What an agent finds out that has come to its own code."""
    return ending.failure is not None and ending.failure.category is ErrorCategory.AUTH


@scenario
async def test_agent_modules_are_not_loaded_before_the_first_agent(tmp_path: Path) -> None:
    runner = agent_runner(tmp_path, agent_modules=WARMUP_MODULES)
    try:
        await runner.open()
        ending, _ = await run_attempt(runner, a_call("add", 1))
        assert ending.failure is None
        assert runner.agent_forkserver.process_id is None

        ending, _ = await run_attempt(runner, AGENT_SPEC)

        assert lacks_credentials(ending), ending
        assert runner.agent_forkserver.process_id not in (None, runner.forkserver.process_id)
    finally:
        await runner.close()
    assert runner.agent_forkserver.process_id is None


@scenario
async def test_agent_modules_can_be_loaded_at_the_start_of_the_worker(tmp_path: Path) -> None:
    runner = agent_runner(tmp_path, agent_modules=WARMUP_MODULES, preload=True)
    try:
        await runner.open()

        assert runner.agent_forkserver.process_id is not None
    finally:
        await runner.close()


@scenario
async def test_a_module_that_cannot_be_loaded_fails_in_the_child(tmp_path: Path) -> None:
    runner = agent_runner(tmp_path, agent_modules=("no_such_module",))
    try:
        ending, _ = await run_attempt(runner, AGENT_SPEC)

        assert lacks_credentials(ending), ending
    finally:
        await runner.close()
