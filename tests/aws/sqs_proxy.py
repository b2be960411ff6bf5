"""A proxy between a process and the stand-in: records receives, and holds responses."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

from tests.aws.stand_in import stand_in


@dataclass(eq=False)
class ObservedReceive:
    """A receive that a process has requested."""

    queue: str
    is_long_poll: bool
    response: dict[str, Any] | None = None  # None: it is out
    released: asyncio.Event = field(default_factory=asyncio.Event)


class SqsProxy:
    """See the module."""

    def __init__(self) -> None:
        self.receives: list[ObservedReceive] = []
        self._held_queues: set[str] = set()
        self._changed = asyncio.Condition()
        self.url = ""

    def hold(self, queue: str) -> None:
        """From now on the answers of this queue's receives that bring something wait."""
        self._held_queues.add(queue)

    def release(self, queue: str) -> None:
        self._held_queues.discard(queue)
        for receive in self.receives:
            if receive.queue == queue:
                receive.released.set()

    async def wait_for_long_poll(self, queue: str) -> ObservedReceive:
        """A long poll that has not returned."""
        return await self._wait_for(queue, lambda item: item.is_long_poll and item.response is None)

    async def wait_for_messages(self, queue: str) -> ObservedReceive:
        """A receive to which SQS has returned messages, even if the response is held."""
        return await self._wait_for(queue, lambda item: bool((item.response or {}).get("Messages")))

    async def _wait_for(self, queue: str, matches: Any) -> ObservedReceive:
        async with self._changed:
            while True:
                for item in reversed(self.receives):
                    if item.queue == queue and matches(item):
                        return item
                await self._changed.wait()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        receive = None
        if request.headers.get("X-Amz-Target", "").endswith(".ReceiveMessage"):
            document = json.loads(body)
            queue = document["QueueUrl"].rpartition("/")[2]
            receive = ObservedReceive(queue, bool(document.get("WaitTimeSeconds")))
            self.receives.append(receive)
            await self._notify()
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        async with self._session.request(
            request.method, stand_in().endpoint + request.raw_path, data=body, headers=headers
        ) as answer:
            content = await answer.read()
            if receive is not None:
                receive.response = json.loads(content)
                await self._notify()
                if receive.response.get("Messages") and receive.queue in self._held_queues:
                    await receive.released.wait()
            forwarded = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("content-length", "transfer-encoding", "connection")
            }
            return web.Response(status=answer.status, body=content, headers=forwarded)


@asynccontextmanager
async def sqs_proxy() -> AsyncIterator[SqsProxy]:
    tap = SqsProxy()
    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", tap._forward)
    runner = web.AppRunner(app, access_log=None)
    async with ClientSession(timeout=ClientTimeout(60), auto_decompress=False) as session:
        tap._session = session
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        tap.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield tap
        finally:
            await runner.cleanup()
