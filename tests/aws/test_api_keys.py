"""The contract of API keys in DynamoDB, and its handling of DynamoDB's own behaviour."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.config_stores import DynamoApiKeys
from longshore.adapters.aws.names import Names
from longshore.core.api_keys import ApiScope, KeyRecord, hash_key
from longshore.errors import AlreadyExists, BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.api_keys import KeysContract, KeysSharedContract
from longshore.testing.contracts.suite import START, clause
from tests.aws.backends import AwsContract, on_aws
from tests.aws.call_faults import (
    CallFault,
    FaultyPortContract,
    after_action,
    request_lost,
    response_lost,
    throttled,
    transaction_cancelled,
    with_parameters,
)

LATER = START + timedelta(days=1)


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, keys=lambda aws, names, _: DynamoApiKeys(aws, names))


class TestDynamoApiKeys(_AwsBackend, KeysContract, KeysSharedContract):
    pass


class TestDynamoApiKeysWithFaults(FaultyPortContract):
    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        return {"keys": DynamoApiKeys(aws, names)}

    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_an_add_whose_response_was_lost_adds_the_key_once(
        self, backend: Backend, fault: CallFault
    ) -> None:
        self.faulty_aws.inject("transact_write_items", fault, fault)

        await backend.keys.add(RECORD)

        assert await backend.keys.find(RECORD.hash) == RECORD
        assert await backend.keys.list("acme") == [RECORD]

    @clause
    async def test_a_second_add_of_a_record_is_not_mistaken_for_a_retry_of_the_first(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("transact_write_items", response_lost)
        await backend.keys.add(RECORD)

        with pytest.raises(AlreadyExists):
            await backend.keys.add(RECORD)

    @clause
    async def test_an_add_whose_responses_are_all_lost_raises_outcome_unknown(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("transact_write_items", *[response_lost] * 3)

        with pytest.raises(OutcomeUnknown):
            await backend.keys.add(RECORD)

        assert self.faulty_aws.count("transact_write_items") == 3

    @clause
    async def test_an_add_that_is_throttled_after_a_lost_response_raises_outcome_unknown(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("transact_write_items", response_lost, throttled)

        with pytest.raises(OutcomeUnknown):
            await backend.keys.add(RECORD)

    @clause
    async def test_an_add_that_conflicts_with_other_transactions_is_retried(
        self, backend: Backend
    ) -> None:
        busy = transaction_cancelled("None", "TransactionConflict", "None")
        self.faulty_aws.inject("transact_write_items", busy, busy, busy)

        await backend.keys.add(RECORD)

        assert await backend.keys.find(RECORD.hash) == RECORD

    @clause
    async def test_an_add_that_always_conflicts_raises_backend_unavailable(
        self, backend: Backend
    ) -> None:
        busy = transaction_cancelled("TransactionConflict", "None", "None")
        self.faulty_aws.inject("transact_write_items", *[busy] * 100)

        with pytest.raises(BackendUnavailable) as caught:
            await backend.keys.add(RECORD)

        assert not isinstance(caught.value, OutcomeUnknown)
        assert await backend.keys.list("acme") == []

    @clause
    async def test_an_add_that_is_throttled_is_not_retried(self, backend: Backend) -> None:
        self.faulty_aws.inject(
            "transact_write_items", transaction_cancelled("None", "ThrottlingError", "None")
        )

        with pytest.raises(BackendUnavailable, match="ThrottlingError"):
            await backend.keys.add(RECORD)

        assert self.faulty_aws.count("transact_write_items") == 1

    @clause
    async def test_an_id_can_be_used_by_one_tenant_only(self, backend: Backend) -> None:
        await backend.keys.add(RECORD)
        theirs = replace(RECORD, tenant="evil", hash=hash_key("lsk_theirs"))

        with pytest.raises(AlreadyExists):
            await backend.keys.add(theirs)

        assert await backend.keys.find(theirs.hash) is None
        assert await backend.keys.list("evil") == []

    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_revoke_whose_response_was_lost_returns_true(
        self, backend: Backend, fault: CallFault
    ) -> None:
        await backend.keys.add(RECORD)
        self.faulty_aws.inject("update_item", fault)

        assert await backend.keys.revoke("acme", RECORD.id, now=LATER) is True

        assert await backend.keys.revoke("acme", RECORD.id, now=LATER) is False
        assert await backend.keys.find(RECORD.hash) == replace(RECORD, revoked_at=LATER)

    @clause
    async def test_a_revoke_of_a_key_that_was_revoked_meanwhile_returns_false(
        self, backend: Backend
    ) -> None:
        await backend.keys.add(RECORD)
        answers: list[bool] = []

        async def revoke() -> None:
            answers.append(await backend.keys.revoke("acme", RECORD.id, now=START))

        self.faulty_aws.inject("update_item", after_action(revoke))

        answers.append(await backend.keys.revoke("acme", RECORD.id, now=LATER))

        assert answers == [True, False]
        assert await backend.keys.find(RECORD.hash) == replace(RECORD, revoked_at=START)

    @clause
    async def test_a_key_is_found_by_one_consistent_read_each_time(self, backend: Backend) -> None:
        await backend.keys.add(RECORD)
        self.faulty_aws.calls.clear()

        for _ in range(2):
            await backend.keys.find(RECORD.hash)

        assert [name for name, _ in self.faulty_aws.calls] == ["get_item"] * 2
        assert all(parameters["ConsistentRead"] for _, parameters in self.faulty_aws.calls)

    @clause
    async def test_the_keys_of_a_tenant_are_listed_in_order_over_several_pages(
        self, backend: Backend
    ) -> None:
        records = [
            replace(
                RECORD,
                id=f"key-{number * 7 % 40}",
                hash=hash_key(f"lsk_{number}"),
                created_at=START + timedelta(microseconds=number // 2),
            )
            for number in range(40)
        ]
        await asyncio.gather(*(backend.keys.add(record) for record in reversed(records)))
        self.faulty_aws.inject("query", *[with_parameters(Limit=9)] * 10)

        listed = await backend.keys.list("acme")

        assert listed == sorted(records, key=lambda record: (record.created_at, record.id))
        assert self.faulty_aws.count("query") == 5

    @clause
    async def test_a_throttled_read_raises_backend_unavailable(self, backend: Backend) -> None:
        self.faulty_aws.inject("get_item", throttled)

        with pytest.raises(BackendUnavailable):
            await backend.keys.find(RECORD.hash)


RECORD = KeyRecord(
    id="key-a",
    tenant="acme",
    name="CI",
    scopes=frozenset({ApiScope.READ}),
    hash=hash_key("lsk_a"),
    created_at=START,
)
