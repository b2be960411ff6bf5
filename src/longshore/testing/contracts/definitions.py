"""The contract of the ``Definitions``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from longshore.core.definitions.definition import Definition, Isolation, ResourceLimits, RunnerKind
from longshore.core.health import HealthThresholds
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import left_at_default
from longshore.testing.contracts.suite import (
    CALLERS,
    Opener,
    PortContract,
    clause,
    gather_all,
)


class DefinitionsContract(PortContract):
    """What holds for every store of definitions."""

    @clause
    async def test_a_definition_that_does_not_exist_is_none(self, backend: Backend) -> None:
        assert await backend.definitions.get("acme", "resize") is None
        assert await backend.definitions.get("acme", "resize", version=1) is None
        assert await backend.definitions.list("acme") == []

    @clause
    async def test_every_field_of_a_definition_is_kept(self, backend: Backend) -> None:
        whole = _full()
        assert left_at_default(whole) == ["version"]

        stored = await backend.definitions.put("acme", whole)

        assert stored == replace(whole, version=1)
        assert await backend.definitions.get("acme", whole.name) == stored
        assert await backend.definitions.get("acme", whole.name, version=1) == stored
        assert await backend.definitions.list("acme") == [stored]

    @clause
    async def test_a_plain_definition_is_kept_as_it_is(self, backend: Backend) -> None:
        plain = Definition(name="resize", runner=RunnerKind.PYTHON)

        stored = await backend.definitions.put("acme", plain)

        assert await backend.definitions.get("acme", "resize") == replace(plain, version=1)
        assert stored.version == 1

    @clause
    async def test_versions_count_from_one_and_ignore_the_number_of_the_argument(
        self, backend: Backend
    ) -> None:
        versions = [
            (await backend.definitions.put("acme", _definition(text, version=42))).version
            for text in ("one", "two", "three")
        ]

        assert versions == [1, 2, 3]

    @clause
    async def test_every_version_stays_as_it_was(self, backend: Backend) -> None:
        for text in ("one", "two", "three"):
            await backend.definitions.put("acme", _definition(text))

        definitions = [
            await backend.definitions.get("acme", "resize", version=v) for v in (1, 2, 3)
        ]
        newest = await backend.definitions.get("acme", "resize")

        assert [definition.description for definition in definitions if definition] == [
            "one",
            "two",
            "three",
        ]
        assert newest == definitions[2]
        for version in (0, -1, 4):
            assert await backend.definitions.get("acme", "resize", version=version) is None

    @clause
    async def test_the_same_content_as_the_newest_is_not_stored_again(
        self, backend: Backend
    ) -> None:
        first = await backend.definitions.put("acme", _full())

        again = await backend.definitions.put("acme", _full())

        assert again == first
        assert await backend.definitions.get("acme", first.name, version=2) is None

    @clause
    async def test_the_content_of_an_older_version_is_a_new_one(self, backend: Backend) -> None:
        for text in ("one", "two"):
            await backend.definitions.put("acme", _definition(text))

        back = await backend.definitions.put("acme", _definition("one"))

        assert back.version == 3

    @clause
    async def test_a_version_cannot_be_changed_through_what_was_handed_over(
        self, backend: Backend
    ) -> None:
        options: dict[str, Any] = {"command": ["echo"]}
        stored = await backend.definitions.put("acme", _definition(options=options))
        definitions = await backend.definitions.get("acme", "resize")
        assert definitions is not None

        options["command"].append("changed")
        stored.options["command"].append("changed")
        definitions.options["command"].append("changed")

        read_again = await backend.definitions.get("acme", "resize")
        assert read_again is not None
        assert read_again.options == {"command": ["echo"]}

    @clause
    async def test_the_newest_versions_are_listed_by_name(self, backend: Backend) -> None:
        for name in ("c", "a", "B", "b"):
            await backend.definitions.put("acme", _definition("old", name=name))
            await backend.definitions.put("acme", _definition("new", name=name))

        listed = await backend.definitions.list("acme")

        assert [(d.name, d.version, d.description) for d in listed] == [
            ("B", 2, "new"),
            ("a", 2, "new"),
            ("b", 2, "new"),
            ("c", 2, "new"),
        ]

    @clause
    async def test_a_deleted_definition_is_found_only_by_its_version(
        self, backend: Backend
    ) -> None:
        stored = await backend.definitions.put("acme", _definition())

        deleted = [await backend.definitions.delete("acme", "resize") for _ in range(2)]

        assert deleted == [True, False]
        assert await backend.definitions.get("acme", "resize") is None
        assert await backend.definitions.list("acme") == []
        assert await backend.definitions.get("acme", "resize", version=1) == stored

    @clause
    async def test_deleting_what_does_not_exist_returns_false(self, backend: Backend) -> None:
        assert await backend.definitions.delete("acme", "resize") is False

    @clause
    async def test_a_put_after_a_delete_goes_on_counting(self, backend: Backend) -> None:
        await backend.definitions.put("acme", _definition("same"))
        await backend.definitions.delete("acme", "resize")

        again = await backend.definitions.put("acme", _definition("same"))

        assert again.version == 2
        assert await backend.definitions.get("acme", "resize") == again
        assert await backend.definitions.list("acme") == [again]
        assert await backend.definitions.delete("acme", "resize") is True

    @clause
    async def test_tenants_do_not_meet(self, backend: Backend) -> None:
        ours = await backend.definitions.put("acme", _definition("ours"))
        theirs = await backend.definitions.put("evil", _definition("theirs"))

        assert (ours.version, theirs.version) == (1, 1)
        assert await backend.definitions.get("acme", "resize", version=1) == ours
        assert await backend.definitions.get("other", "resize", version=1) is None
        assert await backend.definitions.delete("evil", "resize") is True
        assert await backend.definitions.get("acme", "resize") == ours
        assert await backend.definitions.list("acme") == [ours]
        assert await backend.definitions.list("evil") == []

    @clause
    async def test_many_writers_with_content_of_their_own_all_get_a_version(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            name = f"d{number}"
            texts = [f"text {caller}" for caller in range(CALLERS)]

            answers = await gather_all(
                backend.definitions.put("acme", _definition(text, name=name)) for text in texts
            )

            stored = [answer for answer in answers if isinstance(answer, Definition)]
            assert sorted(definition.version for definition in stored) == list(
                range(1, CALLERS + 1)
            )
            for definition, text in zip(stored, texts, strict=True):
                assert definition.description == text
                assert (
                    await backend.definitions.get("acme", name, version=definition.version)
                    == definition
                )

    @clause
    async def test_many_writers_with_the_same_content_lose_nothing(self, backend: Backend) -> None:
        answers = await gather_all(
            backend.definitions.put("acme", _definition("same")) for _ in range(CALLERS)
        )

        stored = [answer for answer in answers if isinstance(answer, Definition)]
        assert len(stored) == CALLERS
        for definition in stored:
            definitions = await backend.definitions.get(
                "acme", "resize", version=definition.version
            )
            assert definitions == definition


class DefinitionsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_definitions_are_there_in_another_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await first.definitions.put("acme", _definition("one"))
            stored = await second.definitions.put("acme", _definition("two"))

            assert stored.version == 2
            assert await first.definitions.get("acme", "resize") == stored

        async with open_backend() as again:
            assert await again.definitions.list("acme") == [stored]


def _definition(description: str = "", *, name: str = "resize", **fields: Any) -> Definition:
    return Definition(name=name, runner=RunnerKind.COMMAND, description=description, **fields)


def _full() -> Definition:
    return Definition(
        name="full-one_2",
        runner=RunnerKind.PYTHON,
        options={"call": "shop:resize", "n": [1, 2.5, None, True, {"ü": "🚢"}], "none": None},
        overridable=("function", "kwargs.n"),
        description="Bilder verkleinern ⚓\n",
        queue="agents",
        priority=Priority.HIGH,
        timeout=timedelta(hours=1, microseconds=1),
        retry=RetryPolicy(max_attempts=9, base=timedelta(seconds=2), cap=timedelta(minutes=9)),
        retry_on_timeout=True,
        retryable_exit_codes=(75, 111),
        requires_review=True,
        isolation=Isolation.SPAWN,
        resources=ResourceLimits(
            cpu=timedelta(seconds=9),
            memory_bytes=2**30,
            open_files=64,
            file_bytes=2**20,
            processes=8,
        ),
        pty=True,
        health=HealthThresholds(
            longest_run=timedelta(hours=9),
            healthy_within=timedelta(minutes=9),
            warning_within=timedelta(minutes=19),
        ),
    )
