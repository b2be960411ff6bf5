"""The stand-in in a thread of its own, for tests and examples that block.

with MessagesApiThread([text("done")]) as api:
    subprocess.run([...], env={"ANTHROPIC_BASE_URL": api.url, ...})
    assert len(api.requests) == 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from longshore.testing.messages_api.requests import Request, Stage
from longshore.testing.messages_api.script import Scripted, Usage
from longshore.testing.messages_api.server import PATIENCE_S, MessagesApi

Given = TypeVar("Given")


class MessagesApiThread:
    """What ``MessagesApi`` is, with every call blocking until it is done."""

    def __init__(self, scripted: Scripted = (), *, agents: Scripted = (), port: int = 0) -> None:
        self._api = MessagesApi(scripted, agents=agents, port=port)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="messages-api", daemon=True)

    @property
    def url(self) -> str:
        """What ``ANTHROPIC_BASE_URL`` must be."""
        return self._api.url

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._api.port

    def url_for(self, key: str) -> str:
        """The base URL of a scenario of its own."""
        return self._api.url_for(key)

    def play(self, scripted: Scripted, *, key: str = "", agents: Scripted = ()) -> str:
        """Answer a scenario from this script from now on; its base URL."""
        return self._call(lambda: self._api.play(scripted, key=key, agents=agents))

    def release(self, gate: str) -> None:
        """Let every answer go that waits, or will wait, at this gate."""
        self._call(lambda: self._api.release(gate))

    @property
    def requests(self) -> list[Request]:
        """The questions to a model in the nameless scenario, in order."""
        return self.requests_of("")

    def requests_of(self, key: str) -> list[Request]:
        """The questions to a model in a scenario, in order."""
        return self._call(lambda: self._api.requests_of(key))

    @property
    def all_requests(self) -> list[Request]:
        """The questions to a model in all scenarios, in order."""
        return self._call(lambda: self._api.all_requests)

    def asked_again(self, key: str = "") -> list[tuple[Request, Request]]:
        """Each request for an answer that had been given, with the one that got it."""
        return self._call(lambda: self._api.asked_again(key))

    def usage_of(self, key: str = "") -> Usage:
        """All tokens that whole answers of a scenario have cost."""
        return self._call(lambda: self._api.usage_of(key))

    def wait_for_requests(
        self, count: int, key: str = "", *, timeout_s: float = PATIENCE_S
    ) -> list[Request]:
        """The requests of a scenario, as soon as there are so many; else ``TimeoutError``."""
        return self._run(self._api.wait_for_requests(count, key, timeout_s=timeout_s))

    def wait_for_stage(
        self, stage: Stage, count: int = 1, key: str = "", *, timeout_s: float = PATIENCE_S
    ) -> list[Request]:
        """The requests that have come to a stage, as soon as there are so many."""
        return self._run(self._api.wait_for_stage(stage, count, key, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._api.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._api.__aexit__(kind, raised, trace))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, function: Callable[[], Given]) -> Given:
        async def call() -> Given:
            return function()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, Given]) -> Given:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
