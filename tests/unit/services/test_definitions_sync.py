"""Definitions of a folder are stored when they change, and no other change is overwritten."""

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.backend import Backend
from longshore.services.definitions import (
    SYNC_RECORDS_PREFIX,
    ApplyResult,
    DefinitionSync,
    FileDefinition,
    FileProblem,
    FolderContents,
)
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import BACKENDS, SECOND, TENANT, open_backend, scenario
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at
from tests.unit.services.virtual_time import advance

HERE, THERE = "/srv/shop", "/srv/other"
FILE = "definitions/feed.yaml"
ORIGINAL, CHANGED, OTHER = (
    Definition(name="feed", runner=RunnerKind.COMMAND, description=text)
    for text in ("one", "two", "by another source")
)
BROKEN = FileProblem(file=FILE, message="expected text, not 1", path="description", line=3)


def from_files(*definitions: Definition) -> list[FileDefinition]:
    return [
        FileDefinition(definition=item, file=f"definitions/{item.name}.yaml")
        for item in definitions
    ]


async def sync_files(backend: Backend, *definitions: Definition, folder: str = HERE) -> ApplyResult:
    """A folder says this to a process that has just started."""
    return await DefinitionSync(backend, TENANT, folder).sync(from_files(*definitions))


async def stored(backend: Backend, name: str = "feed") -> tuple[int, str] | None:
    """The newest version and its description."""
    result = await backend.definitions.get(TENANT, name)
    return result and (result.version, result.description)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_and_changed_definitions_are_stored_and_others_are_left(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        sync = DefinitionSync(backend, TENANT, HERE)
        mail = replace(ORIGINAL, name="mail")

        first = await sync.sync(from_files(ORIGINAL, mail))
        again = await sync.sync(from_files(ORIGINAL, mail))
        restarted = await sync_files(backend, ORIGINAL, mail)
        changed = await sync.sync(from_files(CHANGED, mail))

        assert [item.name for item in first.new] == ["feed", "mail"]
        assert again == restarted == ApplyResult()
        assert [(item.name, item.version) for item in changed.changed] == [("feed", 2)]
        assert await stored(backend, "mail") == (1, "one")
        # What a job was started with.
        assert await backend.definitions.get(TENANT, "feed", version=1) == first.new[0]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_file_that_did_not_change_does_not_overrule_what_others_stored(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        sync = DefinitionSync(backend, TENANT, HERE)
        await sync.sync(from_files(ORIGINAL))
        await backend.definitions.put(TENANT, OTHER)

        await sync.sync(from_files(ORIGINAL))
        restarted = await sync_files(backend, ORIGINAL)
        restarted_again = await sync_files(backend, ORIGINAL)

        assert await stored(backend) == (2, "by another source")
        assert restarted == restarted_again == ApplyResult(overridden=["feed"])
        changed = await sync_files(backend, CHANGED)
        assert [item.version for item in changed.changed] == [3]


@scenario
async def test_a_deleted_definition_stays_deleted_until_its_file_changes(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        await sync_files(backend, ORIGINAL)
        await backend.definitions.delete(TENANT, "feed")

        assert await sync_files(backend, ORIGINAL) == ApplyResult(overridden=["feed"])
        assert await stored(backend) is None
        assert [item.version for item in (await sync_files(backend, CHANGED)).new] == [2]


@scenario
async def test_a_folder_that_is_seen_for_the_first_time_has_its_way(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        await backend.definitions.put(TENANT, OTHER)

        await sync_files(backend, ORIGINAL)

        assert await stored(backend) == (2, "one")


@scenario
async def test_two_folders_that_say_different_things_do_not_take_turns(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        for _ in range(3):
            await sync_files(backend, ORIGINAL, folder=HERE)
            await sync_files(backend, CHANGED, folder=THERE)

        assert await stored(backend) == (2, "two")


@scenario
async def test_tenants_do_not_meet(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        sync = DefinitionSync(backend, TENANT, HERE)
        await sync.sync(from_files(ORIGINAL))

        await DefinitionSync(backend, "else", HERE).sync(from_files(ORIGINAL))

        assert await backend.definitions.get("else", "feed") == replace(ORIGINAL, version=1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_processes_that_see_the_same_change_store_it_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        both = DefinitionSync(backend, TENANT, HERE), DefinitionSync(backend, TENANT, HERE)
        for definition in (ORIGINAL, CHANGED):
            await asyncio.gather(*(item.sync(from_files(definition)) for item in both))

        assert await stored(backend) == (2, "two")


@scenario
async def test_the_later_of_two_processes_does_not_overrule_who_came_between(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        quick, slow = DefinitionSync(backend, TENANT, HERE), DefinitionSync(backend, TENANT, HERE)
        for item in (quick, slow):
            await item.sync(from_files(ORIGINAL))
        await quick.sync(from_files(CHANGED))
        await backend.definitions.put(TENANT, OTHER)

        await slow.sync(from_files(CHANGED))

        assert await stored(backend) == (3, "by another source")


@scenario
async def test_a_late_write_of_a_slow_process_is_replaced(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        quick = DefinitionSync(backend, TENANT, HERE)

        async def overtaken() -> None:
            # Between the slow one's look at the store and its writing: all but the mark.
            await quick.sync(from_files(CHANGED))

        class Lost:
            """The slow one's mark comes before the quick one's."""

            def __getattr__(self, name: str) -> Any:
                return getattr(backend.blobs, name)

            async def put(self, key: str, data: bytes) -> int:
                return len(data)

        late = InterposedPort(backend.definitions, "put", before=overtaken)
        slow = DefinitionSync(replace(backend, definitions=late, blobs=Lost()), TENANT, HERE)
        await slow.sync(from_files(ORIGINAL))
        assert await stored(backend) == (2, "one")

        await slow.sync(from_files(CHANGED))

        assert await stored(backend) == (3, "two")


@pytest.mark.parametrize("after_the_call", [False, True])
@scenario
async def test_a_crash_at_any_call_is_repaired_by_the_next_process(
    tmp_path: Path, after_the_call: bool
) -> None:
    died_at: set[str] = set()
    for at in range(1, 10):
        async with open_backend("memory", tmp_path) as backend:
            await sync_files(backend, ORIGINAL)
            deaths: list[str] = []
            dying = crash_at(backend, at, after_call=after_the_call, crashes=deaths)
            with suppress(Crash):
                await sync_files(dying, CHANGED)
            died_at.update(deaths)

            await sync_files(backend, CHANGED)

            assert await stored(backend) == (2, "two")
            await backend.definitions.put(TENANT, OTHER)
            assert await sync_files(backend, CHANGED) == ApplyResult(overridden=["feed"])
    assert died_at == {"blobs.get", "blobs.put", "definitions.get", "definitions.put"}


@scenario
async def test_a_definition_that_cannot_be_stored_is_logged_and_the_others_are_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        refusing = FlakyPort(backend.definitions, "put", UsageError("no"))
        sync = DefinitionSync(replace(backend, definitions=refusing), TENANT, HERE)
        both = from_files(ORIGINAL, replace(ORIGINAL, name="mail"))

        await sync.sync(both)

        assert await stored(backend) is None
        assert await stored(backend, "mail") == (1, "one")
        (notices,) = [item for item in caplog.records if item.msg == "definition.rejected"]
        assert (notices.definition, notices.file) == ("feed", FILE)
        await sync.sync(both)
        assert await stored(backend) == (1, "one")


@scenario
async def test_a_mark_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        await sync_files(backend, ORIGINAL)
        (key,) = await backend.blobs.list_keys(SYNC_RECORDS_PREFIX)
        for data in (b"", b"[]", b"{}", b'{"version": "x"}', b"\xff"):
            await backend.blobs.put(key, data)

            assert await sync_files(backend, ORIGINAL) == ApplyResult()
            assert await stored(backend) == (1, "one")
            (record,) = await backend.blobs.list_keys(SYNC_RECORDS_PREFIX)
            assert await backend.blobs.get(record) != data


class Folder:
    """What is in a folder, as a watch sees it."""

    def __init__(self, *definitions: Definition) -> None:
        self.set_contents(*definitions)
        self.breaks: BaseException | None = None

    def set_contents(
        self, *definitions: Definition, problems: tuple[FileProblem, ...] = ()
    ) -> None:
        self.contents = FolderContents(tuple(from_files(*definitions)), problems)

    async def read(self) -> FolderContents:
        if self.breaks is not None:
            raise self.breaks
        return self.contents


@asynccontextmanager
async def watching(backend: Backend, folder: Folder, **options: Any) -> Any:
    """A way to let the next look happen."""
    watching = asyncio.ensure_future(
        DefinitionSync(backend, TENANT, HERE).watch(folder.read, every=2 * SECOND, **options)
    )

    async def next_look() -> None:
        await advance(backend.clock, timedelta(seconds=2))
        assert not watching.done()

    try:
        yield next_look
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    result = [item.msg for item in caplog.records if item.name.endswith("services.definitions")]
    caplog.clear()
    return result


@scenario
async def test_a_change_is_stored_at_the_next_look(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        folder = Folder(ORIGINAL)
        async with watching(backend, folder) as next_look:
            assert await stored(backend) is None
            await next_look()
            assert await stored(backend) == (1, "one")
            folder.set_contents(CHANGED)
            await next_look()
            assert await stored(backend) == (2, "two")


@scenario
async def test_a_problem_is_logged_once_and_so_is_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    another = replace(BROKEN, message="expected text, not 2")
    async with open_backend("memory", tmp_path) as backend:
        folder = Folder()
        folder.set_contents(problems=(BROKEN,))
        async with watching(backend, folder, reported=[BROKEN]) as next_look:
            await next_look()
            assert events(caplog) == []
            folder.set_contents(problems=(another,))
            await next_look()
            (notices,) = caplog.records
            assert notices.msg == "definition_file.broken"
            assert (notices.file, notices.line, notices.path) == (FILE, 3, "description")
            assert notices.problem == "expected text, not 2"
            caplog.clear()
            await next_look()
            assert events(caplog) == []
            folder.set_contents(ORIGINAL)
            await next_look()
            assert events(caplog) == ["definition_file.fixed", "definition.applied"]


@scenario
async def test_a_definition_without_a_file_stays_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mail = replace(ORIGINAL, name="mail")
    async with open_backend("memory", tmp_path) as backend:
        await sync_files(backend, ORIGINAL, mail)
        await sync_files(backend, ORIGINAL, folder=THERE)
        folder = Folder(mail)
        folder.set_contents(mail, problems=(BROKEN,))
        events(caplog)
        async with watching(backend, folder, reported=[BROKEN]) as next_look:
            await next_look()
            # It may be in the file that cannot be read.
            assert events(caplog) == []
            folder.set_contents(mail)
            await next_look()
            assert events(caplog) == ["definition_file.fixed", "definition.file_removed"]
            await next_look()
            assert events(caplog) == []
            assert await stored(backend) == (1, "one")
            # To add a file is to change it.
            await backend.definitions.put(TENANT, OTHER)
            folder.set_contents(mail, ORIGINAL)
            await next_look()
            assert await stored(backend) == (3, "one")


@pytest.mark.parametrize(
    "error", [BackendUnavailable("out of reach"), RuntimeError("a fault")], ids=["store", "fault"]
)
@scenario
async def test_an_error_does_not_end_the_watch(tmp_path: Path, error: Exception) -> None:
    async with open_backend("memory", tmp_path) as backend:
        blobs = FlakyPort(backend.blobs, "get", error)
        folder = Folder(ORIGINAL)
        async with watching(replace(backend, blobs=blobs), folder) as next_look:
            await next_look()
            assert await stored(backend) is None
            await next_look()
            assert await stored(backend) == (1, "one")
            folder.breaks = error
            await next_look()
            folder.breaks = None
            folder.set_contents(CHANGED)
            await next_look()
            assert await stored(backend) == (2, "two")
