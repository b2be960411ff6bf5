"""Loads and warms up, in the agents' fork server only, everything that each agent needs.

Children share what was loaded and run before their fork; what runs for the first time in a child
costs every child again. So this module sends queries whose results are discarded: to a CLI that
does not exist, and through a gateway to another one that cannot reach its upstream.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKError, query

import longshore.execution.runners.agent.runner  # noqa: F401 - what a child calls
from longshore.execution.runners.agent.accounting import ModelCall
from longshore.execution.runners.agent.credentials import Credential
from longshore.execution.runners.agent.gateway import LOOPBACK, Gateway

# More runs than the interpreter needs before it specialises a function.
_WARMUP_RUNS = 10
_MISSING_CLI = "/nonexistent"
_UNREACHABLE = f"http://{LOOPBACK}:1"
_REQUEST = {"model": "none", "messages": [], "stream": True, "max_tokens": 1}


async def warm_up() -> None:
    """Run queries and requests that fail."""
    with contextlib.suppress(ClaudeSDKError):
        # The SDK imports its stream libraries on the first query, inside an event loop.
        async for _ in query(prompt="", options=ClaudeAgentOptions(cli_path=_MISSING_CLI)):
            pass
    await asyncio.to_thread(lambda: None)
    async with _gateway(_UNREACHABLE) as refusing, _gateway(refusing.url) as passing:
        headers = {"x-api-key": passing.token}
        async with aiohttp.ClientSession(headers=headers) as client:
            for _ in range(_WARMUP_RUNS):
                async with client.post(f"{passing.url}/v1/messages", json=_REQUEST) as response:
                    await response.read()


def _gateway(upstream: str) -> Gateway:
    return Gateway(Credential("none"), upstream, before=_allow, after=lambda _response: None)


async def _allow(_call: ModelCall) -> None:
    """Allow every request."""


# Without the warm-up agents only start a little later.
with contextlib.suppress(OSError, aiohttp.ClientError):
    asyncio.run(warm_up())
