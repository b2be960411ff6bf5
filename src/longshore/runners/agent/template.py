"""What the keeper of agents loads, and nobody else: everything that each agent would load.

And do for the first time. A child finds what was loaded and done before its fork; whatever it is
the first to do costs it more, and each child anew. So questions are asked here, for nobody: of a
command line that does not exist, and through one gateway of another that refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKError, query

import longshore.runners.agent.run  # noqa: F401 - what a child calls
from longshore.runners.agent.credentials import ApiKey
from longshore.runners.agent.exchanges import GO, Answered, ModelRequest, Verdict
from longshore.runners.agent.gateway import LOOPBACK, Gateway

# More than the interpreter waits for before it adapts a function to what it meets.
_OFTEN = 10
_NOBODY = "/nobody"
_NOWHERE = f"http://{LOOPBACK}:1"
_QUESTION = {"model": "nobody", "messages": [], "stream": True, "max_tokens": 1}


async def rehearse() -> None:
    """Ask, and be refused."""
    with contextlib.suppress(ClaudeSDKError):
        # The SDK loads what its streams stand on when it is first asked, in a loop.
        async for _ in query(prompt="", options=ClaudeAgentOptions(cli_path=_NOBODY)):
            pass
    await asyncio.to_thread(lambda: None)
    async with _gateway(_NOWHERE) as refusing, _gateway(refusing.url) as passing:
        shown = {"x-api-key": passing.token}
        async with aiohttp.ClientSession(headers=shown) as client:
            for _ in range(_OFTEN):
                async with client.post(f"{passing.url}/v1/messages", json=_QUESTION) as answer:
                    await answer.read()


def _gateway(upstream: str) -> Gateway:
    return Gateway(ApiKey("nobody"), upstream, before=_let_go, after=_forget)


async def _let_go(_request: ModelRequest) -> Verdict:
    return GO


def _forget(_answered: Answered) -> None:
    """Nobody wants to know what it took."""


# Without it agents start a little later, and that is all.
with contextlib.suppress(OSError, aiohttp.ClientError):
    asyncio.run(rehearse())
