"""The contract of definitions in DynamoDB, and its handling of DynamoDB's own behaviour."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.config_stores import DEFINITION_LIMIT_BYTES, DynamoDefinitions
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import kind_of
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.errors import BackendUnavailable, OutcomeUnknown, UsageError
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.definitions import DefinitionsContract, DefinitionsSharedContract
from longshore.testing.contracts.suite import Opener, clause
from tests.aws.backends import AwsContract, on_aws
from tests.aws.call_faults import (
    CallFault,
    FaultyPortContract,
    after_action,
    request_lost,
    response_lost,
    response_lost_then,
    throttled,
    with_parameters,
)


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(
            tmp_path, clock, definitions=lambda aws, names, _: DynamoDefinitions(aws, names)
        )


class TestDynamoDefinitions(_AwsBackend, DefinitionsContract, DefinitionsSharedContract):
    pass


class _FaultyDefinitions(FaultyPortContract):
    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        return {"definitions": DynamoDefinitions(aws, names)}


class TestPutWithFaults(_FaultyDefinitions):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @pytest.mark.parametrize("operation", ["put_item", "update_item"])
    @clause
    async def test_a_put_whose_response_was_lost_creates_one_version(
        self, backend: Backend, operation: str, fault: CallFault
    ) -> None:
        await backend.definitions.put("acme", _definition("old"))
        self.faulty_aws.inject(operation, fault, fault)

        stored = await backend.definitions.put("acme", _definition("new"))

        assert stored == replace(_definition("new"), version=2)
        assert await backend.definitions.get("acme", "resize") == stored
        assert await backend.definitions.list("acme") == [stored]
        assert await backend.definitions.get("acme", "resize", version=3) is None

    @pytest.mark.parametrize("operation", ["put_item", "update_item"])
    @clause
    async def test_a_put_whose_responses_are_all_lost_raises_outcome_unknown(
        self, backend: Backend, operation: str
    ) -> None:
        self.faulty_aws.inject(operation, *[response_lost] * 3)

        with pytest.raises(OutcomeUnknown):
            await backend.definitions.put("acme", _definition("new"))

        assert self.faulty_aws.count(operation) == 3

    @clause
    async def test_another_writer_passes_the_version_of_one_that_died(
        self, backend: Backend
    ) -> None:
        await self._put_and_crash(backend, _definition("theirs"))

        stored = await backend.definitions.put("acme", _definition("ours"))

        assert stored.version == 2
        assert await backend.definitions.get("acme", "resize") == stored
        theirs = await backend.definitions.get("acme", "resize", version=1)
        assert theirs == replace(_definition("theirs"), version=1)

    @clause
    async def test_a_repeated_put_after_a_crash_uses_the_same_version(
        self, backend: Backend
    ) -> None:
        await self._put_and_crash(backend, _definition("same"))

        stored = await backend.definitions.put("acme", _definition("same"))

        assert stored.version == 1
        assert await backend.definitions.list("acme") == [stored]
        assert await backend.definitions.get("acme", "resize", version=2) is None

    async def _put_and_crash(self, backend: Backend, definition: Definition) -> None:
        """Fail after taking a version, before it becomes the newest."""
        self.faulty_aws.inject("update_item", throttled)
        with pytest.raises(BackendUnavailable):
            await backend.definitions.put("acme", definition)
        assert await backend.definitions.get("acme", definition.name) is None

    @clause
    async def test_the_newest_version_stays_the_newest_when_an_older_one_is_written_late(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        aws = self.faulty_aws
        async with open_backend() as other:
            aws.inject(
                "update_item",
                after_action(lambda: other.definitions.put("acme", _definition("second"))),
            )

            first = await backend.definitions.put("acme", _definition("first"))

            second = await other.definitions.get("acme", "resize")
            assert second == replace(_definition("second"), version=2)
            assert await backend.definitions.get("acme", "resize") == second
            assert await backend.definitions.get("acme", "resize", version=1) == first

    @clause
    async def test_writers_of_several_processes_all_get_a_version(
        self, open_backend: Opener
    ) -> None:
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(open_backend()) for _ in range(6)]
            for name in ("a", "b", "c"):
                texts = [f"text {number}" for number in range(len(opened))]

                stored = await asyncio.gather(
                    *(
                        backend.definitions.put("acme", _definition(text, name=name))
                        for backend, text in zip(opened, texts, strict=True)
                    )
                )

                assert sorted(item.version for item in stored) == [1, 2, 3, 4, 5, 6]
                assert [item.description for item in stored] == texts
                newest = max(stored, key=lambda item: item.version)
                assert await opened[0].definitions.get("acme", name) == newest

    @clause
    async def test_writers_of_several_processes_with_the_same_content_share_a_version(
        self, open_backend: Opener
    ) -> None:
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(open_backend()) for _ in range(6)]

            stored = await asyncio.gather(
                *(backend.definitions.put("acme", _definition("same")) for backend in opened)
            )

            assert [item.version for item in stored] == [1] * 6

    @clause
    async def test_a_definition_that_is_too_large_is_refused_and_says_what_to_do(
        self, backend: Backend
    ) -> None:
        with pytest.raises(UsageError, match="file"):
            await backend.definitions.put("acme", _definition("ü" * (DEFINITION_LIMIT_BYTES // 2)))

        assert await backend.definitions.list("acme") == []

    @clause
    async def test_the_largest_definition_there_may_be_is_kept(self, backend: Backend) -> None:
        largest = _definition("x" * (DEFINITION_LIMIT_BYTES - 1000), name="n" * 64)

        stored = await backend.definitions.put("t" * 64, largest)

        assert await backend.definitions.list("t" * 64) == [stored]

    @clause
    async def test_definitions_with_the_same_json_have_one_version(self, backend: Backend) -> None:
        for sizes in ((1, 2), [1, 2]):
            definition = replace(_definition(), options={"sizes": sizes})
            stored = await backend.definitions.put("acme", definition)

        assert stored.version == 1
        assert stored.options == {"sizes": [1, 2]}


class TestDeleteWithFaults(_FaultyDefinitions):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_delete_whose_response_was_lost_has_deleted(
        self, backend: Backend, fault: CallFault
    ) -> None:
        await backend.definitions.put("acme", _definition())
        self.faulty_aws.inject("update_item", fault)

        assert await backend.definitions.delete("acme", "resize") is True

        assert await backend.definitions.delete("acme", "resize") is False
        assert await backend.definitions.get("acme", "resize") is None

    @clause
    async def test_a_repeated_delete_does_not_delete_a_later_definition(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        aws = self.faulty_aws
        async with open_backend() as other:
            await backend.definitions.put("acme", _definition("old"))
            aws.inject(
                "update_item",
                response_lost_then(lambda: other.definitions.put("acme", _definition("new"))),
            )

            assert await backend.definitions.delete("acme", "resize") is True

            newest = await backend.definitions.get("acme", "resize")
            assert newest == replace(_definition("new"), version=2)

    @clause
    async def test_a_delete_of_a_definition_that_was_deleted_meanwhile_returns_false(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        aws = self.faulty_aws
        async with open_backend() as other:
            await backend.definitions.put("acme", _definition())
            aws.inject(
                "update_item", after_action(lambda: other.definitions.delete("acme", "resize"))
            )

            assert await backend.definitions.delete("acme", "resize") is False


class TestReadsWithFaults(_FaultyDefinitions):
    @clause
    async def test_definitions_are_listed_in_order_over_several_pages(
        self, backend: Backend
    ) -> None:
        names = [f"d{number:02}" for number in range(12)]
        for name in reversed(names):
            await backend.definitions.put("acme", _definition("x" * 50, name=name))
        await backend.definitions.delete("acme", "d05")
        self.faulty_aws.inject("query", *[with_parameters(Limit=5)] * 10)

        listed = await backend.definitions.list("acme")

        assert [item.name for item in listed] == [name for name in names if name != "d05"]
        assert self.faulty_aws.count("query") == 3

    @clause
    async def test_every_read_is_consistent_and_one_request(self, backend: Backend) -> None:
        await backend.definitions.put("acme", _definition())
        self.faulty_aws.calls.clear()

        await backend.definitions.get("acme", "resize")
        await backend.definitions.get("acme", "resize", version=1)
        await backend.definitions.list("acme")

        assert [name for name, _ in self.faulty_aws.calls] == ["get_item", "get_item", "query"]
        assert all(parameters["ConsistentRead"] for _, parameters in self.faulty_aws.calls)

    @clause
    async def test_a_separator_in_a_tenant_or_a_name_does_not_mix_up_keys(
        self, backend: Backend
    ) -> None:
        await backend.definitions.put("a#b", _definition(name="c"))

        assert await backend.definitions.get("a", "b#c", version=1) is None
        assert await backend.definitions.get("a%23b", "c", version=1) is None
        assert await backend.definitions.list("a") == []

    @pytest.mark.parametrize("name", ["", "n" * 3000, "ü" * 600], ids=len)
    @clause
    async def test_an_invalid_name_has_no_definition(self, backend: Backend, name: str) -> None:
        assert await backend.definitions.get("acme", name) is None
        assert await backend.definitions.get("acme", name, version=1) is None
        assert await backend.definitions.delete("acme", name) is False


def test_no_two_lists_of_parts_make_one_kind() -> None:
    parts = ["", "a", "#", "%", "a#", "#a", "%23", "a%23", "%2523"]
    lists = [(item,) for item in parts] + [(item, two) for item in parts for two in parts]

    assert len({kind_of(*entry) for entry in lists}) == len(lists)


def _definition(description: str = "", *, name: str = "resize") -> Definition:
    return Definition(name=name, runner=RunnerKind.COMMAND, description=description)
