"""Accounts in DynamoDB held to their contract, and what DynamoDB does besides."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.accounts import DynamoAccounts
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.names import Names
from longshore.core.budgets import Account, Holding, day_account
from longshore.core.events.types import Usage
from longshore.core.ids import job_id_of, task_id_of
from longshore.errors import BackendUnavailable, OutcomeUnknown, VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.accounts import AccountsContract, AccountsSharedContract
from longshore.testing.contracts.suite import START, clause
from tests.aws.backends import OnAws, on_aws
from tests.aws.trouble import (
    InTrouble,
    Mishap,
    after,
    lost,
    lost_and_then,
    never_arrived,
    throttled,
)

KILOBYTE = 1024
IN_THE_FIRST_KILOBYTE = 8


class _Aws(OnAws):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, accounts=lambda aws, names, _: DynamoAccounts(aws, names))


class TestDynamoAccounts(_Aws, AccountsContract, AccountsSharedContract):
    pass


class TestDynamoAccountsInTrouble(InTrouble):
    def port(self, aws: Aws, names: Names) -> dict[str, Any]:
        return {"accounts": DynamoAccounts(aws, names)}

    @pytest.mark.parametrize("mishap", [lost, never_arrived])
    @clause
    async def test_a_commit_that_is_not_answered_is_made_once(
        self, backend: Backend, mishap: Mishap
    ) -> None:
        for account in (FIRST, SECOND):
            self.trouble.meet("update_item", mishap, mishap)

            await backend.accounts.commit(account)

            assert await _stored(backend) == account

    @clause
    async def test_a_commit_that_is_never_answered_is_told_as_unknown_and_can_be_made_again(
        self, backend: Backend
    ) -> None:
        for account in (FIRST, SECOND):
            self.trouble.meet("update_item", *[lost] * 3)
            with pytest.raises(OutcomeUnknown):
                await backend.accounts.commit(account)

            await backend.accounts.commit(account)

            assert await _stored(backend) == account

    @clause
    async def test_a_commit_that_is_lost_and_then_refused_for_a_while_is_unknown(
        self, backend: Backend
    ) -> None:
        self.trouble.meet("update_item", lost, throttled)

        with pytest.raises(OutcomeUnknown):
            await backend.accounts.commit(FIRST)

    @clause
    async def test_a_commit_that_is_throttled_has_not_happened(self, backend: Backend) -> None:
        self.trouble.meet("update_item", throttled)

        with pytest.raises(BackendUnavailable) as told:
            await backend.accounts.commit(FIRST)

        assert not isinstance(told.value, OutcomeUnknown)
        assert await _stored(backend) is None

    @clause
    async def test_a_commit_that_comes_after_another_is_a_conflict_although_its_answer_was_lost(
        self, backend: Backend
    ) -> None:
        await backend.accounts.commit(FIRST)

        async def overtake() -> None:
            await backend.accounts.commit(OTHER)

        self.trouble.meet("update_item", after(overtake), lost)

        with pytest.raises(VersionConflict):
            await backend.accounts.commit(SECOND)

        assert await _stored(backend) == OTHER

    @clause
    async def test_a_commit_that_is_made_again_spares_what_others_have_written_since(
        self, backend: Backend
    ) -> None:
        await backend.accounts.commit(FIRST)
        third = replace(SECOND, version=3, change_id="third", holdings=())

        async def follow() -> None:
            await backend.accounts.commit(third)

        self.trouble.meet("update_item", lost_and_then(follow))

        # Nobody can tell it from one that came too late: it is to be read and decided again.
        with pytest.raises(VersionConflict):
            await backend.accounts.commit(SECOND)

        assert await _stored(backend) == third

    @clause
    async def test_an_account_is_read_and_committed_by_one_request_each(
        self, backend: Backend
    ) -> None:
        await backend.accounts.commit(FIRST)
        await backend.accounts.commit(FIRST)
        await _stored(backend)

        assert [name for name, _ in self.trouble.made] == ["update_item"] * 2 + ["get_item"]
        assert self.trouble.made[-1][1]["ConsistentRead"] is True

    @clause
    async def test_a_throttled_read_is_told(self, backend: Backend) -> None:
        self.trouble.meet("get_item", throttled)

        with pytest.raises(BackendUnavailable):
            await _stored(backend)

    @clause
    async def test_a_commit_is_one_unit_while_few_have_anything_open(
        self, backend: Backend
    ) -> None:
        held = tuple(_holding(number) for number in range(IN_THE_FIRST_KILOBYTE))
        await backend.accounts.commit(replace(FIRST, holdings=held))

        ((_, written),) = self.trouble.made

        parts = [*written["Key"].values(), *written["ExpressionAttributeValues"].values()]
        names = [*written["Key"], *written["ExpressionAttributeNames"].values()]
        values = [value for part in parts for value in part.values()]
        assert sum(map(len, names)) + sum(map(len, values)) <= KILOBYTE


async def _stored(backend: Backend) -> Account | None:
    return await backend.accounts.account(FIRST.tenant, FIRST.name)


def _holding(number: int) -> Holding:
    """As long as a real one: with figures that have many digits."""
    spent = Usage(
        input_tokens=104_729 * number,
        output_tokens=7_919 + number,
        cache_read_tokens=1_299_709 - number,
        turns=number,
        cost_usd=number / 7,
        seconds=number * 100 / 3,
    )
    task_id = task_id_of(job_id_of("acme", f"request {number}"), "review")
    reserved = Usage(input_tokens=15_485 * number, output_tokens=32_000, turns=1, cost_usd=0.48)
    return Holding(task_id=task_id, attempt=1, spent=spent, reserved=reserved)


FIRST = Account(
    tenant="acme",
    name=day_account(START),
    version=1,
    change_id="0d7a3c1e5b9f48629f1c2d3e4f5a6b7c",
    holdings=(_holding(1),),
)
SECOND = replace(FIRST, version=2, change_id="second", holdings=(_holding(1), _holding(2)))
OTHER = replace(FIRST, version=2, change_id="other", holdings=(_holding(3),))
