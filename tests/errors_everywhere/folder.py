"""A folder of definitions that is followed while it changes."""

import asyncio
from datetime import timedelta

from longshore.core.definition import Definition, RunnerKind
from longshore.services.definition_sync import MARKS, DefinitionSync, FromFile, Reading
from tests.errors_everywhere.play import Play
from tests.unit.services.stage import TENANT, a_task

_PLACE = "/a/folder"
_EVERY = timedelta(seconds=1)


def _of(*words: str) -> Reading:
    """A folder with the definitions ``d0``, ``d1`` and so on, described so."""
    return Reading(
        tuple(
            FromFile(
                definition=Definition(
                    name=f"d{number}", runner=RunnerKind.PYTHON, description=word
                ),
                file=f"definitions/d{number}.yaml",
            )
            for number, word in enumerate(words)
        ),
        (),
    )


async def folder(play: Play) -> None:
    """Definitions come, change and go; a second process begins with what the first had done."""
    says = _of("first", "second")

    async def look() -> Reading:
        return says

    async def newest(name: str) -> str | None:
        found = await play.raw.definitions.get(TENANT, name)
        return found.description if found else None

    async def stored() -> bool:
        wanted = [one.definition for one in says.documents]
        return all([await newest(one.name) == one.description for one in wanted])

    async def marks() -> int:
        return len(await play.raw.blobs.keys(MARKS, after="", limit=10))

    await play.submitted("beside", a_task("beside"))
    first = DefinitionSync(play.ours.backend)
    await play.is_answered(lambda: first.apply(TENANT, [says.documents[0].definition]))
    running = asyncio.ensure_future(first.watch(TENANT, _PLACE, look, every=_EVERY))
    await play.until(stored, "what the folder says is not stored")
    says = _of("changed", "second")
    await play.until(stored, "what the folder changed is not stored")
    await _over(play, running)

    second = DefinitionSync(play.ours.backend)
    await play.is_answered(lambda: second.follow(TENANT, _PLACE, says.documents))
    says = _of("changed")
    running = asyncio.ensure_future(second.watch(TENANT, _PLACE, look, every=_EVERY))

    async def left() -> bool:
        return await marks() == 1

    await play.until(left, "what has left the folder is not forgotten")
    assert await newest("d1") == "second"
    await _over(play, running)
    await play.until_job("beside")


async def _over(play: Play, running: asyncio.Future[None]) -> None:
    if running.done():
        error = running.exception()
        play.broke.append(error or RuntimeError("nobody follows the folder any more"))
    running.cancel()
    await asyncio.wait({running})
