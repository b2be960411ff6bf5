"""The conversation store: a tool starts only when its request is stored."""

import asyncio
import threading
from typing import Any, cast

from claude_agent_sdk import HookContext, SessionKey
from claude_agent_sdk.types import HookInput

from longshore.execution.runners.agent.query import ConversationStore

KEY = cast("SessionKey", {"session_id": "s1"})
TIMEOUT_S = 30.0


def tool_request(tool_id: str) -> Any:
    block = {"type": "tool_use", "id": tool_id, "name": "Bash", "input": {}}
    return {"type": "assistant", "message": {"content": [block]}}


def before_tool(store: ConversationStore, tool_id: str, **payload: Any) -> asyncio.Future[Any]:
    context = cast("HookContext", {"signal": None})
    return asyncio.ensure_future(store.before_tool(cast("HookInput", payload), tool_id, context))


def test_a_tool_waits_until_the_worker_has_its_request() -> None:
    sending, sent = threading.Event(), threading.Event()

    def send(_kind: str, **_content: Any) -> None:
        sending.set()
        assert sent.wait(TIMEOUT_S)

    async def run() -> None:
        store = ConversationStore("s1", None, send)
        hook = before_tool(store, "t1")
        storing = asyncio.ensure_future(store.append(KEY, [tool_request("t1")]))
        await asyncio.to_thread(sending.wait, TIMEOUT_S)
        assert not hook.done()

        sent.set()

        assert await asyncio.wait_for(hook, TIMEOUT_S) == {}
        await storing

    asyncio.run(run())


def test_a_tool_whose_request_is_stored_starts_at_once() -> None:
    async def run() -> None:
        store = ConversationStore("s1", None, lambda *_, **__: None)
        await store.append(KEY, [tool_request("t1")])

        assert await asyncio.wait_for(before_tool(store, "t1"), TIMEOUT_S) == {}

    asyncio.run(run())


def test_a_tool_of_a_subagent_does_not_wait() -> None:
    async def run() -> None:
        store = ConversationStore("s1", None, lambda *_, **__: None)

        hook = before_tool(store, "t1", agent_id="a1")
        await asyncio.sleep(0)

        assert hook.done()

    asyncio.run(run())
