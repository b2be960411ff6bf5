"""Where an agent lives while an attempt lasts: its folders, its way to the model, who watches it.

Everything that its command line writes stays below the attempt's folder, so that it ends with it;
only the files it works on are the task's, and outlive an attempt that failed: the next one goes on
with them. What the worker is told of the model's answers is told here, from what passed through.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from claude_agent_sdk import ClaudeAgentOptions, SandboxSettings, SessionStore

from longshore.core.agents.ending_reasons import CREDENTIALS
from longshore.core.agents.plan import BYPASS, AgentPlan, AgentStep
from longshore.core.child_places import AGENT_FOLDER
from longshore.core.failures import ErrorCategory, Failed, Failure, error_text
from longshore.runners.agent.credentials import ApiKey, Bearer, Credential
from longshore.runners.agent.exchanges import GO, Answered, ModelRequest, Verdict, expected_of
from longshore.runners.agent.gateway import Gateway
from longshore.runners.agent.observing import Observer, Traces
from longshore.runners.agent.places import Place
from longshore.runners.agent.secrecy import hide_memory
from longshore.runners.agent.sessions import StepSession
from longshore.runners.channel import Channel
from longshore.runners.context import Context

_PUBLIC_API = "https://api.anthropic.com"
_MODE = 0o700
_FRAME_BYTES = 16 * 2**20  # one line of what the command line says
_SANDBOX_NEEDS = ("bwrap", "socat")
_SANDBOX = cast(
    "SandboxSettings",
    {
        "enabled": True,
        "failIfUnavailable": True,  # the type does not know it, the command line does
        # By itself it would let the model ask for a way out, and every command that stays inside.
        "allowUnsandboxedCommands": False,
        "autoAllowBashIfSandboxed": False,
    },
)
# The sandbox listens on sockets in its temporary folder, and the kernel takes no longer names.
_SOCKET = "/claude-socks-0123456789abcdef.sock"
_LONGEST_SOCKET = 107
# The command line turns to the other model when it has tried so often, and without it never.
_RETRIES_BEFORE_FALLBACK = 2
_OLDER_LIST, _NEWER_LIST = "TodoWrite", ("TaskCreate", "TaskUpdate")
_BAD_STATUS = 400


class House:
    """Open as long as its ``async with`` lasts."""

    def __init__(
        self, order: Mapping[str, Any], plan: AgentPlan, channel: Channel, place: Place
    ) -> None:
        self._place = place
        self._order = order
        self._access: Mapping[str, Any] = order["agent"]
        self._plan = plan
        self._channel = channel
        self._folder = Path(order["folder"])
        self._home = self._folder / AGENT_FOLDER
        self._temporary = (
            _sandbox_folder(self._access) if plan.sandbox else self._home / "temporary"
        )
        self._used = dict.fromkeys(
            ("inputTokens", "outputTokens", "cacheReadTokens", "turns", "costUsd"), 0.0
        )
        self._began_s = time.monotonic()
        self._step = ""
        self._numbers = 0
        self._asked: dict[int, int] = {}  # what was let go, by the number under which it was asked
        self._traces = Traces(str(self._folder), Context(order, channel).summary)
        self._observer: Observer | None = None
        self._until_left = AsyncExitStack()
        self._gateway = Gateway(
            _credential(self._access),
            self._access["baseUrl"] or _PUBLIC_API,
            before=self._before,
            after=self._after,
            trust_env=True,
        )

    @property
    def model(self) -> str | None:
        """Which one is asked."""
        return self._plan.model or self._access["model"]

    async def __aenter__(self) -> Self:
        hide_memory()
        for name in ("config", "temporary"):
            (self._home / name).mkdir(mode=_MODE, parents=True, exist_ok=True)
        if self._plan.sandbox:
            # An attempt that was killed may have left it.
            self._remove_temporary()
            self._temporary.mkdir(mode=_MODE)
            self._until_left.callback(self._remove_temporary)
        # The SDK puts a conversation that is gone on with into a folder of its own choice.
        tempfile.tempdir = str(self._home / "temporary")
        await self._until_left.enter_async_context(self._gateway)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._until_left.aclose()

    def say(self, kind: str, /, **content: Any) -> None:
        """Tell the worker."""
        self._channel.say(kind, **content)

    @contextlib.contextmanager
    def observed(self, step: AgentStep, session_id: str, *, resumed: bool) -> Iterator[Observer]:
        """Have somebody watch a conversation."""
        with self._traces.observing(
            step.name, self.say, _now, session_id=session_id, resumed=resumed
        ) as observer:
            self._observer, self._step = observer, step.name
            try:
                yield observer
            finally:
                self._observer = None

    def options(
        self, step: AgentStep, session: StepSession, observer: Observer, *, resumes: bool
    ) -> ClaudeAgentOptions:
        """What the SDK is told for a conversation of this step."""
        plan = self._plan
        options = ClaudeAgentOptions(
            cwd=self._place.folder,
            model=self.model,
            fallback_model=plan.fallback_model,
            # Nothing of the user's or the repository's own settings: they may name programs.
            setting_sources=[],
            strict_mcp_config=True,
            verbatim_prompts=True,
            mcp_servers={name: _server(one) for name, one in plan.mcp_servers.items()},
            tools=list(step.tool_names),
            allowed_tools=list(step.tools),
            permission_mode=plan.permission_mode,  # type: ignore[arg-type]
            max_turns=step.max_turns,
            max_buffer_size=_FRAME_BYTES,
            hooks=observer.hooks(),
            env=self._environment(step),
            cli_path=self._access["cliPath"],
            session_store=cast("SessionStore", session),
            session_store_flush="eager",
            resume=session.id if resumes else None,
            session_id=None if resumes else session.id,
        )
        if step.output_schema is not None:
            options.output_format = {"type": "json_schema", "schema": dict(step.output_schema)}
        if plan.sandbox:
            options.sandbox = _SANDBOX
        return options

    def _remove_temporary(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _environment(self, step: AgentStep) -> dict[str, str]:
        home, temporary, access = str(self._home), str(self._temporary), self._access
        for_fallback = _RETRIES_BEFORE_FALLBACK if self._plan.fallback_model else 0
        around: Mapping[str, str] = self._order["environment"]
        return {
            # The SDK hands on all that this process has; what is ours alone is emptied.
            **{name: "" for name in around if name.startswith("LONGSHORE_")},
            "HOME": home,
            "TMPDIR": temporary,
            "CLAUDE_CONFIG_DIR": f"{home}/config",
            "CLAUDE_CODE_TMPDIR": temporary,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # One result for one question.
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            # By itself it would try for minutes, also where trying cannot help.
            "CLAUDE_CODE_MAX_RETRIES": str(max(access["retries"], for_fallback)),
            "API_TIMEOUT_MS": str(access["answerWithinMs"]),
            "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(access["stallsAfterMs"]),
            **({"IS_SANDBOX": "1"} if self._plan.permission_mode == BYPASS else {}),
            **({"CLAUDE_CODE_ENABLE_TASKS": "0"} if _wants_older_list(step) else {}),
            **self._gateway.environment(around),
        }

    async def _before(self, request: ModelRequest) -> Verdict:
        if not self._order["budgeted"]:
            return GO
        self._numbers += 1
        number, step = self._numbers, self._step
        wanted = expected_of(request, self._gateway.prices)
        asking = asyncio.ensure_future(
            asyncio.to_thread(
                self._channel.may_spend, number, step=step, spent=self._spent(), wanted=wanted
            )
        )
        try:
            stop = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Whoever wanted to ask has left: what is granted now is not on its way.
            asking.add_done_callback(lambda _: self.say("usage", settles=number, **self._spent()))
            raise
        if stop is None:
            self._asked[id(request)] = number
        return Verdict(stop)

    def _spent(self) -> dict[str, float]:
        return {**self._used, "seconds": time.monotonic() - self._began_s}

    @property
    def stopped(self) -> Failure | None:
        """Why the agent may ask nothing more; None: it may."""
        if (why := self._gateway.stopped) is None:
            return None
        # If nobody could be asked, it is not the budget's end, and another attempt may fare better.
        broken = self._gateway.failure is not None
        category = ErrorCategory.CRASH if broken else ErrorCategory.VALIDATION
        return Failure(category=category, message=error_text(why))

    def _after(self, answered: Answered) -> None:
        tokens = answered.tokens
        self._used["inputTokens"] += tokens.input + tokens.cache_write + tokens.cache_write_1h
        self._used["outputTokens"] += tokens.output
        self._used["cacheReadTokens"] += tokens.cache_read
        self._used["turns"] += answered.whole and answered.request.agent_id is None
        self._used["costUsd"] += answered.cost_usd
        self.say("usage", settles=self._asked.pop(id(answered.request), None), **self._spent())
        if self._observer is not None:
            usage = {
                "input_tokens": tokens.input,
                "output_tokens": tokens.output,
                "cache_read_input_tokens": tokens.cache_read,
                "cache_creation_input_tokens": tokens.cache_write + tokens.cache_write_1h,
            }
            self._observer.answered(answered.model, usage, answered.cost_usd)

    def api_trouble(self) -> dict[str, Any]:
        """What the command line does not tell of how the API last failed."""
        status, gateway = self._gateway.last_status, self._gateway
        return {
            "api_status": status if status is not None and status >= _BAD_STATUS else None,
            "api_trouble": None if gateway.trouble is None else ErrorCategory.NETWORK,
            "retry_after": gateway.retry_after,
        }

    def keep_result(self, name: str, result: Any) -> None:
        """A step's result, among the files that are kept."""
        folder = self._folder / "artifacts"
        folder.mkdir(mode=_MODE, exist_ok=True)
        (folder / name).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")

    async def settle(self) -> None:
        """Keep what the agent changed, as far as it can be told."""
        await self._place.settle(self._folder / "artifacts", self.say)

    def leave(self) -> None:
        """The work is done: the files that it was done on are not needed any more."""
        self._place.remove()


def check_can_begin(access: Mapping[str, Any], plan: AgentPlan) -> None:
    """Find out before anything is fetched or made whether there is a way to the model.

    Raises:
        Failed: there is none, or not one as safe as the plan asks for.
    """
    _credential(access)
    if plan.sandbox:
        _check_sandbox(access)


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - a child has no clock but the machine's


def _credential(access: Mapping[str, Any]) -> Credential:
    kind, secret = access["credential"]["kind"], access["credential"]["secret"]
    match kind:
        case "api_key":
            return ApiKey(secret)
        case "auth_token":
            return Bearer(secret)
        case "oauth_token":
            return Bearer(secret, subscription=True)
    message = (
        f"there are no credentials for the model: set {CREDENTIALS} in the environment of the"
        " worker, start it again, and resume the task"
    )
    raise Failed(Failure(category=ErrorCategory.AUTH, message=message))


def _check_sandbox(access: Mapping[str, Any]) -> None:
    missing = [name for name in _SANDBOX_NEEDS if shutil.which(name) is None]
    if missing:
        message = (
            f"the definition asks for a sandbox, which needs {' and '.join(missing)} on the"
            " worker's machine: install bubblewrap and socat, or leave 'sandbox' out"
        )
        raise Failed(Failure(category=ErrorCategory.NOT_FOUND, message=message))
    folder = _sandbox_folder(access)
    if len(os.fsencode(folder)) + len(_SOCKET) > _LONGEST_SOCKET:
        message = (
            f"the definition asks for a sandbox, and the path of {folder} is too long for its"
            " sockets: give the worker a data_dir with a shorter one, or leave 'sandbox' out"
        )
        raise Failed(Failure(category=ErrorCategory.NOT_FOUND, message=message))


def _sandbox_folder(access: Mapping[str, Any]) -> Path:
    """The temporary folder of a sandbox: the same in every attempt of a task, and a short path."""
    workspace = Path(access["workspace"])
    short = hashlib.blake2b(workspace.name.encode(), digest_size=6).hexdigest()
    return workspace.with_name(short)


def _wants_older_list(step: AgentStep) -> bool:
    """The command line has one of its two kinds of todo lists, by default the newer."""
    names = step.tool_names
    return _OLDER_LIST in names and not any(newer in names for newer in _NEWER_LIST)


def _server(given: Mapping[str, Any]) -> Any:
    kind = "stdio" if "command" in given else "http"
    return {"type": kind, **given}
