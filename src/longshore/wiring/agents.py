"""What agents, and nobody else, are told by the worker."""

from __future__ import annotations

from typing import Any

from longshore.settings import Settings


def agent_modules(settings: Settings) -> tuple[str, ...]:
    """What is loaded once, so that not every agent has to wait for it."""
    return ("longshore.runners.agent.run",) if settings.agent.preload else ()


def agent_access(settings: Settings) -> dict[str, Any]:
    """How to reach the model, and what agents may do here."""
    agent = settings.agent
    kind, secret = agent.credential or (None, None)
    return {
        "credential": {"kind": kind, "secret": secret},
        "baseUrl": agent.base_url,
        "model": agent.model,
        "cliPath": None if agent.cli_path is None else str(agent.cli_path),
        "retries": agent.retries,
        "answerWithinMs": int(agent.answer_within.total_seconds() * 1000),
        "stallsAfterMs": int(agent.stalls_after.total_seconds() * 1000),
        "allowBypass": agent.allow_bypass,
        "localRepositories": agent.local_repositories,
    }
