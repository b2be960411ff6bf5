"""The session of an agent, tested inside its own process."""

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from longshore.core.agents.plan import AgentPlan
from longshore.core.agents.prices import LIST_PRICES
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.runners.agent.accounting import ModelCall
from longshore.execution.runners.agent.session import AgentSession
from longshore.execution.runners.agent.workspace import open_working_directory
from longshore.execution.runners.channel import Channel

GET_DUMPABLE, SET_DUMPABLE = 3, 4
TIMEOUT_S = 30.0


@pytest.fixture
def prctl() -> Iterator[Any]:
    call = ctypes.CDLL(None).prctl
    before = call(GET_DUMPABLE, 0, 0, 0, 0)
    call(SET_DUMPABLE, 1, 0, 0, 0)
    yield call
    call(SET_DUMPABLE, before, 0, 0, 0)


class GrantingChannel:
    """A channel to a worker that grants a request when the test allows it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.requested, self.granted = threading.Event(), threading.Event()

    def send(self, kind: str, **content: Any) -> None:
        self.sent.append({"type": kind, **content})

    def request_spend(self, number: int, **content: Any) -> str | None:
        self.requested.set()
        assert self.granted.wait(TIMEOUT_S)
        return None


def session_in(folder: Path, channel: Any) -> AgentSession:
    access = {
        "credential": {"kind": "api_key", "secret": "sk"},
        "baseUrl": None,
        "workspace": str(folder / "work"),
        "retries": 0,
        "responseTimeoutMs": 1000,
        "stallTimeoutMs": 1000,
    }
    spec = {
        "task_id": "job_a",
        "job_id": "job",
        "attempt": 1,
        "folder": str(folder),
        "feedback": None,
        "previous_output": None,
        "dependency_outputs": {},
        "checkpoints": {},
        "agent": access,
        "environment": {},
        "has_budget": True,
    }
    return AgentSession(spec, AgentPlan(steps=()), cast("Channel", channel), folder)


# From outside, root can look into any process, and the tests may be run by it.
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hide a process's memory")
def test_the_child_hides_its_memory_before_the_credential_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prctl: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)  # the session sets it
    agent_session = session_in(tmp_path, GrantingChannel())

    async def open_it() -> int:
        async with agent_session.open():
            return int(prctl(GET_DUMPABLE, 0, 0, 0, 0))

    assert asyncio.run(open_it()) == 0


def test_a_grant_for_a_disconnected_client_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    worker = GrantingChannel()
    call = ModelCall(model="m", max_tokens=10, size_bytes=40, prices=LIST_PRICES)

    async def leaves() -> None:
        agent_session = session_in(tmp_path, worker)
        request_task = asyncio.ensure_future(agent_session._before_request(call))
        await asyncio.to_thread(worker.requested.wait, TIMEOUT_S)
        request_task.cancel()
        await asyncio.wait((request_task,))
        assert request_task.cancelled()
        assert worker.sent == []
        worker.granted.set()
        async with asyncio.timeout(TIMEOUT_S):
            while not worker.sent:
                await asyncio.sleep(0)

    asyncio.run(leaves())
    (reported,) = worker.sent
    assert (reported["type"], reported["settles"], reported["costUsd"]) == ("usage", 1, 0.0)


def test_an_agent_may_not_leave_tasks_in_the_background(tmp_path: Path) -> None:
    agent_session = session_in(tmp_path, GrantingChannel())

    environment = agent_session._environment()

    assert environment.get("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS") == "1"


@pytest.mark.parametrize(
    ("broke", "category"),
    [(None, ErrorCategory.VALIDATION), (OSError("no thread"), ErrorCategory.CRASH)],
)
def test_a_failed_budget_check_is_not_an_exhausted_budget(
    tmp_path: Path, broke: OSError | None, category: ErrorCategory
) -> None:
    agent_session = session_in(tmp_path, GrantingChannel())
    assert agent_session.stop_failure is None

    agent_session._gateway.stop_reason, agent_session._gateway.failure = "nothing is left", broke

    assert agent_session.stop_failure is not None
    assert (agent_session.stop_failure.category, agent_session.stop_failure.message) == (
        category,
        "nothing is left",
    )


def test_opening_a_working_directory_updates_its_age(tmp_path: Path) -> None:
    own = tmp_path / "task.agent"
    (own / "files").mkdir(parents=True)  # as an earlier attempt left it
    os.utime(own, (1_000_000, 1_000_000))
    spec = {"agent": {"workspace": str(own)}, "environment": {}}

    open_working_directory(spec, AgentPlan(steps=()), lambda *_, **__: None)

    assert own.stat().st_mtime > 1_000_000
