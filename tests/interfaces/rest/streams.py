"""Reading server-sent events as a client does."""

import json
from collections.abc import AsyncIterator
from typing import Any

from tests.interfaces.rest.server import RestServer


async def read_stream(
    server: RestServer, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, str, Any]]:
    """Events of a stream: name, id, data."""
    request_headers = {"x-api-key": server.keys["all"], **(headers or {})}
    async with server.client.stream("GET", path, headers=request_headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
            elif "data" in fields:
                yield fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])
                fields = {}
