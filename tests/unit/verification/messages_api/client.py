"""Asking the stand-in as the CLI does, without the CLI."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import httpx2

from verification.messages_api import Request

LIMIT_S = 30
SESSION = "x-claude-code-session-id"
AGENT = "x-claude-code-agent-id"


def scenario(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(function)
    def test(**arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await function(**arguments)

        asyncio.run(bounded())

    return test


def question(prompt: str = "do it", *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    conversation = [{"role": "user", "content": prompt}]
    return {"model": "claude-x", "stream": stream, "messages": conversation, **fields}


async def send_request(
    url: str, body: dict[str, Any] | None = None, *, session: str = "s1", agent: str | None = None
) -> httpx2.Response:
    """One request on a connection of its own, read to its end."""
    headers = {"x-api-key": "a-key", SESSION: session} | ({AGENT: agent} if agent else {})
    async with httpx2.AsyncClient(trust_env=False, timeout=LIMIT_S) as client:
        path = f"{url}/v1/messages?beta=true"
        return await client.post(path, json=body or question(), headers=headers)


async def answer_to(url: str, prompt: str = "do it", **arguments: Any) -> str:
    """The text of the answer to a question."""
    response = await send_request(url, question(prompt, stream=False), **arguments)
    document = response.json()
    if response.status_code != 200:
        return f"{response.status_code} {document['error']['message']}"
    return "".join(block.get("text", "") for block in document["content"])


def events_in(body: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    events = []
    for part in body.split("\n\n"):
        name, _, data = part.partition("\ndata: ")
        if data:
            event = json.loads(data)
            assert name == f"event: {event['type']}"
            events.append(event)
    return events


def request(*messages: tuple[str, Any], **fields: Any) -> Request:
    """A request as it is kept, with a conversation of (who, what)."""
    conversation = [{"role": role, "content": content} for role, content in messages]
    headers = fields.pop("headers", {})
    return Request(
        number=1,
        scenario="",
        method="POST",
        path="/v1/messages",
        query="",
        headers=headers,
        body={"messages": conversation, **fields},
        received_at_s=0.0,
    )
