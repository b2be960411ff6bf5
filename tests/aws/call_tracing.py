"""Finds the sites of a call: through entry points and into the tasks that these start."""

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any
from unittest.mock import patch

from tests.aws.call_sites import (
    ENTRY_POINTS,
    FILES,
    PACKAGE,
    CallSite,
    call_site_at,
    finder_of,
    in_entry_point,
)
from tests.unit.services.virtual_time import IdleAwareLoop

Chain = tuple[CallSite, ...]
"""Sites, each of which calls the entry point that contains the next one."""

_CHAIN: ContextVar[Chain] = ContextVar("_CHAIN", default=())
_MODULES = {
    file.stem: ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES
}


def calling_sites() -> Chain:
    """The sites of the call that is made by the caller of the calling function."""
    frame = sys._getframe(2)
    if finder_of(frame) is None:
        return ()
    site = call_site_at(frame)
    if site is None:
        code = frame.f_code
        message = f"no site is known in {code.co_filename}:{frame.f_lineno}, {code.co_name}"
        raise AssertionError(message)
    return (*_CHAIN.get(), site) if in_entry_point(frame) else (site,)


@contextmanager
def trace_callers() -> Iterator[None]:
    """Calls made through an entry point are attributed to the site that called it."""
    with ExitStack() as stack:
        for module, kinds in ENTRY_POINTS.items():
            home = import_module(_MODULES[module])
            for kind, names in kinds.items():
                for name in names:
                    if (kind, name) == ("AwsClient", "call"):
                        continue  # the call itself, which records its sites
                    owner = getattr(home, kind)
                    way = _traced_probe if kind == "Probe" else _traced
                    stack.enter_context(patch.object(owner, name, way(getattr(owner, name))))
        yield


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    def way(*args: Any, **kwargs: Any) -> Any:
        chain, work = calling_sites(), original(*args, **kwargs)
        return (
            _iterate_in_chain(work, chain)
            if inspect.isasyncgen(work)
            else _run_in_chain(chain, work)
        )

    return way


def _traced_probe(original: Callable[..., Any]) -> Callable[..., Any]:
    """A probe calls the client directly, so its call is recorded here."""

    def way(probe: Any, service: str, operation: str, **parameters: Any) -> Any:
        chain, note = calling_sites(), getattr(probe.aws, "record_call", None)

        async def ask() -> Any:
            if note is not None:
                note(chain, service, operation)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, IdleAwareLoop)
            loop.begin()
            try:
                return await original(probe, service, operation, **parameters)
            finally:
                loop.end()

        return ask()

    return way


async def _run_in_chain(chain: Chain, work: Awaitable[Any]) -> Any:
    token = _CHAIN.set(chain)
    try:
        return await work
    finally:
        _CHAIN.reset(token)


async def _iterate_in_chain(
    items: AsyncGenerator[Any, None], chain: Chain
) -> AsyncGenerator[Any, None]:
    try:
        while True:
            try:
                item = await _run_in_chain(chain, anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        await items.aclose()
