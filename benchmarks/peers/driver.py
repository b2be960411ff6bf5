"""``python -m benchmarks.peers.driver ADAPTER ACTION ARGUMENTS``: submits tasks to a peer.

Runs in the peer's environment and writes `client.json`: when each call began and ended, and the CPU
time of this process. The action is `submit_each`, which calls the adapter's `submit` or
`submit_high` once per task, or a function of the adapter, which is called once.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from benchmarks.peers import bodies

_OPTIONAL = {"install", "connect", "close", "released"}


class Driver:
    """Calls an adapter, whether its functions are coroutine functions or not."""

    def __init__(self, adapter: ModuleType) -> None:
        self._adapter = adapter
        self.is_async = inspect.iscoroutinefunction(adapter.submit)
        self._before: list[float] = []
        self._after: list[float] = []

    async def run(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Connect, carry out the action, close."""
        if action == "install":
            await self._call("install")
            return {}
        await self._call("connect")
        try:
            cpu_s = time.process_time()
            value = None
            if action == "submit_each":
                await self._submit_each(**arguments)
            else:
                self._before.append(time.monotonic())
                value = await self._call(action, **arguments)
                self._after.append(time.monotonic())
            cpu_s = time.process_time() - cpu_s
        finally:
            await self._call("close")
        return {
            "value": value,
            "cpu_s": cpu_s,
            "before": self._before,
            "after": self._after,
            # Added to a time above, gives the time of day, which is what strace prints.
            "wall_offset_s": time.time() - time.monotonic(),
        }

    async def _call(self, name: str, **arguments: Any) -> Any:
        function = getattr(self._adapter, name, None)
        if function is None and name in _OPTIONAL:
            return None
        assert function is not None, f"the adapter has no {name}"
        result = function(**arguments)
        return await result if inspect.isawaitable(result) else result

    async def _submit_each(
        self,
        *,
        bodies: Sequence[str],
        count: int,
        first: int = 0,
        interval_s: float = 0.0,
        high: bool = False,
    ) -> None:
        submit = self._adapter.submit_high if high else self._adapter.submit
        began = time.monotonic()
        for index in range(count):
            if interval_s:
                await self._sleep(began + index * interval_s - time.monotonic())
            self._before.append(time.monotonic())
            result = submit(bodies[index % len(bodies)], first + index)
            if self.is_async:
                await result
            self._after.append(time.monotonic())

    async def _sleep(self, seconds: float) -> None:
        if self.is_async:
            await asyncio.sleep(max(0.0, seconds))
        else:
            time.sleep(max(0.0, seconds))  # noqa: ASYNC251 - there is no event loop


def main() -> None:
    """Run one action; see the module."""
    name, action, arguments = sys.argv[1:]
    driver = Driver(importlib.import_module(f"benchmarks.peers.adapters.{name}"))
    work = driver.run(action, json.loads(arguments))
    if driver.is_async:
        result = asyncio.run(work)
    else:
        # Some blocking clients refuse to run inside an event loop. This coroutine never suspends.
        try:
            work.send(None)
        except StopIteration as end:
            result = end.value
    (bodies.folder() / "client.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
