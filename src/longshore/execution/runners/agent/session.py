"""The session of an agent during one attempt: its folders, its gateway to the model, its trace.

Everything that the agent's CLI writes stays below the attempt's folder and is removed with it. Only
the files that it works on belong to the task; they outlive a failed attempt, and the next one
continues with them. The session also reports the usage of each model response to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, SandboxSettings, SessionStore

from longshore.core.agents.failures import CREDENTIALS
from longshore.core.agents.plan import BYPASS_PERMISSIONS, AgentPlan, AgentStep
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, error_text
from longshore.execution.linux import hide_memory
from longshore.execution.protocol import AGENT_FOLDER
from longshore.execution.runners.agent.accounting import ModelCall
from longshore.execution.runners.agent.credentials import (
    API_KEY,
    AUTH_TOKEN,
    OAUTH_TOKEN,
    Credential,
)
from longshore.execution.runners.agent.gateway import Gateway
from longshore.execution.runners.agent.query import ConversationStore
from longshore.execution.runners.agent.tracing import AgentTracer
from longshore.execution.runners.channel import Channel
from longshore.execution.runners.context import Context

_PUBLIC_API = "https://api.anthropic.com"
_MODE = 0o700
_FRAME_BYTES = 16 * 2**20  # one line of the CLI's output
_SANDBOX_PROGRAMS = ("bwrap", "socat")
_SANDBOX = cast(
    "SandboxSettings",
    {
        "enabled": True,
        "failIfUnavailable": True,  # missing in the SDK's type, known to the CLI
        # By default the model may request unsandboxed commands, and sandboxed ones are all allowed.
        "allowUnsandboxedCommands": False,
        "autoAllowBashIfSandboxed": False,
    },
)
# The sandbox listens on sockets in its temporary folder; the kernel limits their path length.
_SOCKET_SUFFIX = "/claude-socks-0123456789abcdef.sock"
_MAX_SOCKET_PATH = 107
# The CLI switches to the fallback model only after this many retries.
_RETRIES_BEFORE_FALLBACK = 2
_FIRST_ERROR_STATUS = 400
_CREDENTIAL_VARIABLES = {"api_key": API_KEY, "auth_token": AUTH_TOKEN, "oauth_token": OAUTH_TOKEN}


@dataclass(eq=False, repr=False)
class AgentSession:
    """The session of one attempt, to be used inside ``open``."""

    spec: Mapping[str, Any]
    plan: AgentPlan
    channel: Channel
    working_directory: Path

    def __post_init__(self) -> None:
        self._access: Mapping[str, Any] = self.spec["agent"]
        self._home = Path(self.spec["folder"]) / AGENT_FOLDER
        self._temporary = (
            _sandbox_folder(self._access) if self.plan.sandbox else self._home / "temporary"
        )
        self._usage = dict.fromkeys(
            ("inputTokens", "outputTokens", "cacheReadTokens", "turns", "costUsd"), 0.0
        )
        self._started_s = time.monotonic()
        self._request_number = 0
        self.tracer = AgentTracer(
            self.spec["folder"],
            self.channel.send,
            _now,
            Context(self.spec, self.channel).summary,
        )
        self._gateway = Gateway(
            _credential(self._access),
            self._access["baseUrl"] or _PUBLIC_API,
            before=self._before_request,
            after=self._after_response,
            trust_env=True,
        )

    @property
    def model(self) -> str | None:
        """The name of the model; None: the CLI's default."""
        return self.plan.model or self._access["model"]

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Create the folders and serve the gateway while the block runs."""
        hide_memory()
        for name in ("config", "temporary"):
            (self._home / name).mkdir(mode=_MODE, parents=True, exist_ok=True)
        if self.plan.sandbox:
            # A killed attempt may have left it.
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary.mkdir(mode=_MODE)
        # The SDK writes a resumed conversation into the default temporary folder.
        tempfile.tempdir = str(self._home / "temporary")
        try:
            async with self._gateway:
                yield self
        finally:
            if self.plan.sandbox:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def options(
        self, step: AgentStep, session: ConversationStore, *, resumes: bool
    ) -> ClaudeAgentOptions:
        """Returns the SDK's options for a conversation of this step."""
        plan = self.plan
        hooks = self.tracer.hooks()
        hooks["PreToolUse"] = [*hooks["PreToolUse"], HookMatcher(hooks=[session.before_tool])]
        schema = step.output_schema
        servers: dict[str, Any] = {
            name: {"type": "stdio" if "command" in config else "http", **config}
            for name, config in plan.mcp_servers.items()
        }
        return ClaudeAgentOptions(
            cwd=self.working_directory,
            model=self.model,
            fallback_model=plan.fallback_model,
            # Ignore the settings of the user and of the repository: they may name programs to run.
            setting_sources=[],
            strict_mcp_config=True,
            verbatim_prompts=True,
            mcp_servers=servers,
            tools=list(step.tool_names),
            allowed_tools=list(step.tools),
            permission_mode=plan.permission_mode,  # type: ignore[arg-type]
            max_turns=step.max_turns,
            max_buffer_size=_FRAME_BYTES,
            hooks=hooks,
            env=self._environment(),
            cli_path=self._access["cliPath"],
            session_store=cast("SessionStore", session),
            session_store_flush="eager",
            resume=session.id if resumes else None,
            session_id=None if resumes else session.id,
            output_format={"type": "json_schema", "schema": dict(schema)} if schema else None,
            sandbox=_SANDBOX if plan.sandbox else None,
        )

    def _environment(self) -> dict[str, str]:
        home, temporary, access = str(self._home), str(self._temporary), self._access
        fallback_retries = _RETRIES_BEFORE_FALLBACK if self.plan.fallback_model else 0
        inherited: Mapping[str, str] = self.spec["environment"]
        return {
            # The SDK passes on this process's environment; Longshore's own variables are emptied.
            **{name: "" for name in inherited if name.startswith("LONGSHORE_")},
            "HOME": home,
            "TMPDIR": temporary,
            "CLAUDE_CONFIG_DIR": f"{home}/config",
            "CLAUDE_CODE_TMPDIR": temporary,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # One result per query.
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            # By default the CLI retries for minutes, also where a retry cannot help.
            "CLAUDE_CODE_MAX_RETRIES": str(max(access["retries"], fallback_retries)),
            "API_TIMEOUT_MS": str(access["responseTimeoutMs"]),
            "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(access["stallTimeoutMs"]),
            **({"IS_SANDBOX": "1"} if self.plan.permission_mode == BYPASS_PERMISSIONS else {}),
            **self._gateway.environment(inherited),
        }

    async def _before_request(self, call: ModelCall) -> str | None:
        """Ask the worker for permission to spend. Returns the reason of a refusal."""
        if not self.spec["has_budget"]:
            return None
        self._request_number += 1
        number = self._request_number
        content = {
            "step": self.tracer.step.step,
            "spent": self._spent(),
            "estimate": call.expected_usage,
        }
        reply = asyncio.ensure_future(
            asyncio.to_thread(self.channel.request_spend, number, **content)
        )
        try:
            refusal = await asyncio.shield(reply)
        except asyncio.CancelledError:
            # The client has disconnected: settle the grant at once, as nothing will be spent.
            reply.add_done_callback(
                lambda _: self.channel.send("usage", settles=number, **self._spent())
            )
            raise
        call.grant = number
        return refusal

    def _spent(self) -> dict[str, float]:
        return {**self._usage, "seconds": time.monotonic() - self._started_s}

    @property
    def stop_failure(self) -> Failure | None:
        """Why the gateway refuses further model requests; None: it does not."""
        if (reason := self._gateway.stop_reason) is None:
            return None
        # A failed budget check is not an exhausted budget: another attempt may succeed.
        broken = self._gateway.failure is not None
        category = ErrorCategory.CRASH if broken else ErrorCategory.VALIDATION
        return Failure(category=category, message=error_text(reason))

    def _after_response(self, call: ModelCall) -> None:
        tokens, cost_usd = call.tokens, call.cost_usd
        self._usage["inputTokens"] += tokens.input + tokens.cache_creation
        self._usage["outputTokens"] += tokens.output
        self._usage["cacheReadTokens"] += tokens.cache_read
        self._usage["turns"] += call.complete and call.agent_id is None
        self._usage["costUsd"] += cost_usd
        self.channel.send("usage", settles=call.grant, **self._spent())
        self.tracer.on_response(call.message_id, tokens, cost_usd)

    def api_failure(self) -> dict[str, Any]:
        """Returns the details of the last API failure that the CLI does not report."""
        gateway, status = self._gateway, self._gateway.last_status or 0
        return {
            "api_status": status if status >= _FIRST_ERROR_STATUS else None,
            "unreachable": gateway.unreachable,
            "retry_after": gateway.retry_after,
        }


def check_prerequisites(access: Mapping[str, Any], plan: AgentPlan) -> None:
    """Check the credentials and the sandbox before anything is fetched or created.

    Raises:
        FailureRaised: there are no credentials, or the sandbox that the plan needs is unavailable.
    """
    _credential(access)
    if plan.sandbox:
        _check_sandbox(access)


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - a child has no other clock


def _credential(access: Mapping[str, Any]) -> Credential:
    variable = _CREDENTIAL_VARIABLES.get(access["credential"]["kind"])
    if variable is not None:
        return Credential(access["credential"]["secret"], variable)
    message = (
        f"there are no credentials for the model: set {CREDENTIALS} in the environment of the"
        " worker, start it again, and resume the task"
    )
    raise FailureRaised(Failure(category=ErrorCategory.AUTH, message=message))


def _check_sandbox(access: Mapping[str, Any]) -> None:
    folder = _sandbox_folder(access)
    if missing := [name for name in _SANDBOX_PROGRAMS if shutil.which(name) is None]:
        message = (
            f"the definition asks for a sandbox, which needs {' and '.join(missing)} on the"
            " worker's machine: install bubblewrap and socat, or leave 'sandbox' out"
        )
    elif len(os.fsencode(folder)) + len(_SOCKET_SUFFIX) > _MAX_SOCKET_PATH:
        message = (
            f"the definition asks for a sandbox, and the path of {folder} is too long for its"
            " sockets: give the worker a data_dir with a shorter one, or leave 'sandbox' out"
        )
    else:
        return
    raise FailureRaised(Failure(category=ErrorCategory.NOT_FOUND, message=message))


def _sandbox_folder(access: Mapping[str, Any]) -> Path:
    """Returns a sandbox's temporary folder: a short path, the same in every attempt of a task."""
    workspace = Path(access["workspace"])
    name = hashlib.blake2b(workspace.name.encode(), digest_size=6).hexdigest()
    return workspace.with_name(name)
