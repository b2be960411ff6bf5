"""Children of a worker; and what agents, and nobody else, are told by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.clock import Clock
from longshore.settings import Settings, child_environment


def build_runner(
    settings: Settings, clock: Clock, inherited_fds: Callable[[], Sequence[int]]
) -> ProcessRunner:
    """What starts them; ``held`` are files that stay open as long as anything of them lives."""
    return ProcessRunner(
        settings.data_dir.absolute(),
        child_environment(settings),
        clock,
        keep_folders=settings.worker.keep_work_dirs,
        agent_access=agent_config(settings),
        modules=settings.worker.app,
        agent_modules=_agent_modules(settings),
        preload=settings.agent.preload,
        inherited_fds=inherited_fds,
    )


def _agent_modules(settings: Settings) -> tuple[str, ...]:
    """What is loaded once, so that not every agent has to wait for it; nothing without the SDK."""
    wanted = settings.agent.preload or find_spec("claude_agent_sdk") is not None
    return ("longshore.execution.runners.agent.warmup",) if wanted else ()


def agent_config(settings: Settings) -> dict[str, Any]:
    """How to reach the model, and what agents may do here."""
    agent = settings.agent
    kind, secret = agent.credential or (None, None)
    return {
        "credential": {"kind": kind, "secret": secret},
        "baseUrl": agent.base_url,
        "model": agent.model,
        "cliPath": None if agent.cli_path is None else str(agent.cli_path),
        "retries": agent.retries,
        "responseTimeoutMs": int(agent.response_timeout.total_seconds() * 1000),
        "stallTimeoutMs": int(agent.stall_timeout.total_seconds() * 1000),
        "allowBypass": agent.allow_bypass,
        "localRepositories": agent.local_repositories,
    }
