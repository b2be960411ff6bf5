"""Who makes a call: sites are followed through ways out and into the tasks that these begin."""

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any
from unittest.mock import patch

from longshore.adapters.aws.queue_batches import Batches
from tests.aws.call_sites import WAYS_OUT, Place, in_a_way_out, place_at, reader_of
from tests.unit.services.patience import PatientLoop

Chain = tuple[Place, ...]
"""Sites, each of which calls a way out in which the next one is."""

_CHAIN: ContextVar[Chain] = ContextVar("_CHAIN", default=())
_HOMES = {"from_dynamo": "longshore.testing.auditing.from_dynamo"}


def caller() -> Chain:
    """The sites through which whoever called the function that asks this makes a call."""
    frame = sys._getframe(2)
    if reader_of(frame) is None:
        return ()
    place = place_at(frame)
    if place is None:
        code = frame.f_code
        message = f"no site is known in {code.co_filename}:{frame.f_lineno}, {code.co_name}"
        raise AssertionError(message)
    return (*_CHAIN.get(), place) if in_a_way_out(frame) else (place,)


@contextmanager
def seen_through() -> Iterator[None]:
    """Calls that are made through ways out are those of who uses these."""
    with ExitStack() as stack:
        for module, kinds in WAYS_OUT.items():
            home = import_module(_HOMES.get(module, f"longshore.adapters.aws.{module}"))
            for kind, names in kinds.items():
                for name in names if kind != "Aws" else ():
                    owner = getattr(home, kind)
                    way = _asked if kind == "Asking" else _seen
                    stack.enter_context(patch.object(owner, name, way(getattr(owner, name))))
        by_entries: dict[int, tuple[Any, Chain]] = {}
        stack.enter_context(patch.object(Batches, "each", _each(Batches.each, by_entries)))
        stack.enter_context(patch.object(Batches, "_send", _sent(Batches._send, by_entries)))
        yield


def _seen(original: Callable[..., Any]) -> Callable[..., Any]:
    def way(*given: Any, **named: Any) -> Any:
        chain, work = caller(), original(*given, **named)
        return _walk(work, chain) if inspect.isasyncgen(work) else _within(chain, work)

    return way


def _asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Whoever examines has the client itself in hand."""

    def way(asking: Any, service: str, operation: str, **given: Any) -> Any:
        chain, note = caller(), getattr(asking._aws, "note", None)

        async def ask() -> Any:
            if note is not None:
                note(chain, service, operation)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, PatientLoop)
            loop.begin()
            try:
                return await original(asking, service, operation, **given)
            finally:
                loop.end()

        return ask()

    return way


def _each(original: Callable[..., Any], by_entries: dict[int, Any]) -> Callable[..., Any]:
    def way(batches: Any, name: str, operation: str, entries: Any, **named: Any) -> Any:
        # Kept, so that no other list is the same.
        by_entries[id(entries)] = entries, (chain := caller())
        return _within(chain, original(batches, name, operation, entries, **named))

    return way


def _sent(original: Callable[..., Any], by_entries: dict[int, Any]) -> Callable[..., Any]:
    async def way(batches: Any, kind: Any, parts: Any) -> None:
        # Who came first: others who came meanwhile go with it.
        _CHAIN.set(by_entries[id(parts[0].entries)][1])
        await original(batches, kind, parts)

    return way


async def _within(chain: Chain, work: Awaitable[Any]) -> Any:
    token = _CHAIN.set(chain)
    try:
        return await work
    finally:
        _CHAIN.reset(token)


async def _walk(items: AsyncGenerator[Any, None], chain: Chain) -> AsyncGenerator[Any, None]:
    try:
        while True:
            try:
                item = await _within(chain, anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        await items.aclose()
