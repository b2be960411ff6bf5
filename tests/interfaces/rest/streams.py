"""Reading server-sent events as a client does."""

import json
from collections.abc import AsyncIterator
from typing import Any

from tests.interfaces.rest.server import RestServer


async def read_stream(
    server: RestServer, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, str, Any]]:
    """Events of a stream: name, id, data."""
    wanted = {"x-api-key": server.keys["all"], **(headers or {})}
    async with server.client.stream("GET", path, headers=wanted) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        found: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(":")
                found[name] = value.strip()
            elif "data" in found:
                yield found.get("event", ""), found.get("id", ""), json.loads(found["data"])
                found = {}
