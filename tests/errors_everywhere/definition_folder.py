"""A folder of definitions that is followed while it changes."""

import asyncio
from datetime import timedelta

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.services.definitions import (
    SYNC_RECORDS_PREFIX,
    DefinitionSync,
    FileDefinition,
    FolderContents,
)
from tests.errors_everywhere.harness import ErrorHarness
from tests.unit.services.harness import TENANT, make_task

_FOLDER = "/a/folder"
_EVERY = timedelta(seconds=1)


def _contents(*descriptions: str) -> FolderContents:
    """A folder with the definitions ``d0``, ``d1`` and so on, described so."""
    return FolderContents(
        tuple(
            FileDefinition(
                definition=Definition(
                    name=f"d{number}", runner=RunnerKind.PYTHON, description=word
                ),
                file=f"definitions/d{number}.yaml",
            )
            for number, word in enumerate(descriptions)
        ),
        (),
    )


async def folder(harness: ErrorHarness) -> None:
    """Definitions come, change and go; a second process begins with what the first had done."""
    says = _contents("first", "second")

    async def look() -> FolderContents:
        return says

    async def newest(name: str) -> str | None:
        result = await harness.raw.definitions.get(TENANT, name)
        return result.description if result else None

    async def stored() -> bool:
        options = [item.definition for item in says.definitions]
        return all([await newest(item.name) == item.description for item in options])

    async def marks() -> int:
        return len(await harness.raw.blobs.list_keys(SYNC_RECORDS_PREFIX, after="", limit=10))

    await harness.submit("beside", make_task("beside"))
    first = DefinitionSync(harness.faulty.backend, TENANT, _FOLDER)
    await harness.call_until_answered(lambda: first.sync(says.definitions[:1]))
    running = asyncio.ensure_future(first.watch(look, every=_EVERY))
    await harness.wait_until(stored, "what the folder says is not stored")
    says = _contents("changed", "second")
    await harness.wait_until(stored, "what the folder changed is not stored")
    await _stop(harness, running)

    second = DefinitionSync(harness.faulty.backend, TENANT, _FOLDER)
    await harness.call_until_answered(lambda: second.sync(says.definitions))
    says = _contents("changed")
    running = asyncio.ensure_future(second.watch(look, every=_EVERY))

    async def left() -> bool:
        return await marks() == 1

    await harness.wait_until(left, "what has left the folder is not forgotten")
    assert await newest("d1") == "second"
    await _stop(harness, running)
    await harness.wait_for_jobs("beside")


async def _stop(harness: ErrorHarness, running: asyncio.Future[None]) -> None:
    if running.done():
        error = running.exception()
        harness.worker_errors.append(error or RuntimeError("the folder is not followed any more"))
    running.cancel()
    await asyncio.wait({running})
