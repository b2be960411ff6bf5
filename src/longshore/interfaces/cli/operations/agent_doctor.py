"""Whether tasks that an agent does can be run here, and with what."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version

from longshore.core.inspection import Check, CheckStatus
from longshore.settings import Settings

_CREDENTIALS = "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"
_VARIABLES = {
    "api_key": "ANTHROPIC_API_KEY",
    "auth_token": "ANTHROPIC_AUTH_TOKEN",
    "oauth_token": "CLAUDE_CODE_OAUTH_TOKEN",
}


def check_agents(settings: Settings) -> Check:
    """Agents are an extra: who uses none need not mend anything, so this never fails."""
    try:
        sdk = f"claude-agent-sdk {version('claude-agent-sdk')}"
    except PackageNotFoundError:
        remedy = "to run agents: pip install 'longshore[agent]'"
        return Check("agents", CheckStatus.OK, "not installed", remedy=remedy)
    if settings.agent.credential is None:
        return Check(
            "agents",
            CheckStatus.WARN,
            f"{sdk}, but no credentials: an agent task would fail at once",
            remedy=f"set {_CREDENTIALS} where workers are started",
        )
    kind, _ = settings.agent.credential
    address = f" at {settings.agent.base_url}" if settings.agent.base_url else ""
    boxed = all(shutil.which(name) for name in ("bwrap", "socat"))
    sandbox = "sandbox available" if boxed else "no sandbox (bubblewrap and socat)"
    return Check("agents", CheckStatus.OK, f"{sdk}, {_VARIABLES[kind]}{address}, {sandbox}")
