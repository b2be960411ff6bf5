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

from verification.messages_api.requests import Request, RequestState
from verification.messages_api.script import ScriptSource, Usage
from verification.messages_api.server import WAIT_TIMEOUT_S, MessagesApi

ResultT = TypeVar("ResultT")


class MessagesApiThread:
    """What ``MessagesApi`` is, with every call blocking until it is done."""

    def __init__(
        self, source: ScriptSource = (), *, agents: ScriptSource = (), port: int = 0
    ) -> None:
        self._api = MessagesApi(source, agents=agents, port=port)
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

    def set_script(self, source: ScriptSource, *, key: str = "", agents: ScriptSource = ()) -> str:
        """Answer a scenario from this script from now on; its base URL."""
        return self._call(lambda: self._api.set_script(source, key=key, agents=agents))

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

    def repeated_requests(self, key: str = "") -> list[tuple[Request, Request]]:
        """Returns each request for an answer that had arrived, with the request that got it."""
        return self._call(lambda: self._api.repeated_requests(key))

    def usage_of(self, key: str = "") -> Usage:
        """All tokens that whole answers of a scenario have cost."""
        return self._call(lambda: self._api.usage_of(key))

    def wait_for_requests(
        self, count: int, key: str = "", *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> list[Request]:
        """The requests of a scenario, as soon as there are so many; else ``TimeoutError``."""
        return self._run(self._api.wait_for_requests(count, key, timeout_s=timeout_s))

    def wait_for_state(
        self,
        state: RequestState,
        count: int = 1,
        key: str = "",
        *,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Request]:
        """The requests that have come to a stage, as soon as there are so many."""
        return self._run(self._api.wait_for_state(state, count, key, timeout_s=timeout_s))

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

    def _call(self, function: Callable[[], ResultT]) -> ResultT:
        async def call() -> ResultT:
            return function()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
