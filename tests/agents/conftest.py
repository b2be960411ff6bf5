"""One stage for all tests of a module: the SDK takes a second to load, once for each worker."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.agents.harness import AgentHarness, open_harness

_FOREIGN = ("LONGSHORE_", "ANTHROPIC_", "CLAUDE_")


@pytest.fixture(autouse=True, scope="module")
def _no_credentials_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        match = [name for name in os.environ if name.startswith(_FOREIGN)]  # noqa: TID251
        for name in match:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def shared_harness(
    tmp_path_factory: pytest.TempPathFactory, _no_credentials_from_outside: None
) -> Iterator[AgentHarness]:
    opened: asyncio.Future[AgentHarness]
    over = asyncio.Event()

    async def hold() -> None:
        # One asyncio task opens and closes it, independent of the tests in between.
        async with open_harness(tmp_path_factory.mktemp("stage")) as harness:
            opened.set_result(harness)
            await over.wait()

    async def open_it() -> tuple[AgentHarness, asyncio.Task[None]]:
        nonlocal opened
        opened = asyncio.get_running_loop().create_future()
        holding = asyncio.ensure_future(hold())
        await asyncio.wait((opened, holding), return_when=asyncio.FIRST_COMPLETED)
        if holding.done():
            holding.result()
        return await opened, holding

    async def close_it() -> None:
        over.set()
        await holding

    with asyncio.Runner() as runner:
        harness, holding = runner.run(open_it())
        harness.runner = runner
        yield harness
        runner.run(close_it())


@pytest.fixture
def harness(shared_harness: AgentHarness) -> AgentHarness:
    """A harness that the tests of a module share; each sets its own script."""
    return shared_harness
