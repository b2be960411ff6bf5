"""The contract of shared budgets in DynamoDB, and its handling of DynamoDB's own behaviour."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.config_stores import DynamoBudgets
from longshore.adapters.aws.names import Names
from longshore.core.budgets import Reservation, SharedBudget, day_budget_name
from longshore.core.events.types import Usage
from longshore.core.ids import job_id_of, task_id_of
from longshore.errors import BackendUnavailable, OutcomeUnknown, VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.budgets import BudgetsContract, BudgetsSharedContract
from longshore.testing.contracts.suite import START, clause
from tests.aws.backends import AwsContract, on_aws
from tests.aws.call_faults import (
    CallFault,
    FaultyPortContract,
    after_action,
    request_lost,
    response_lost,
    response_lost_then,
    throttled,
)

KILOBYTE = 1024
IN_THE_FIRST_KILOBYTE = 8


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, budgets=lambda aws, names, _: DynamoBudgets(aws, names))


class TestDynamoBudgets(_AwsBackend, BudgetsContract, BudgetsSharedContract):
    pass


class TestDynamoBudgetsWithFaults(FaultyPortContract):
    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        return {"budgets": DynamoBudgets(aws, names)}

    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_commit_whose_response_was_lost_is_applied_once(
        self, backend: Backend, fault: CallFault
    ) -> None:
        for account in (FIRST, SECOND):
            self.faulty_aws.inject("update_item", fault, fault)

            await backend.budgets.commit(account)

            assert await _stored(backend) == account

    @clause
    async def test_a_commit_whose_responses_are_all_lost_raises_outcome_unknown_and_can_be_repeated(
        self, backend: Backend
    ) -> None:
        for account in (FIRST, SECOND):
            self.faulty_aws.inject("update_item", *[response_lost] * 3)
            with pytest.raises(OutcomeUnknown):
                await backend.budgets.commit(account)

            await backend.budgets.commit(account)

            assert await _stored(backend) == account

    @clause
    async def test_a_commit_that_is_throttled_after_a_lost_response_raises_outcome_unknown(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("update_item", response_lost, throttled)

        with pytest.raises(OutcomeUnknown):
            await backend.budgets.commit(FIRST)

    @clause
    async def test_a_commit_that_is_throttled_has_not_happened(self, backend: Backend) -> None:
        self.faulty_aws.inject("update_item", throttled)

        with pytest.raises(BackendUnavailable) as caught:
            await backend.budgets.commit(FIRST)

        assert not isinstance(caught.value, OutcomeUnknown)
        assert await _stored(backend) is None

    @clause
    async def test_a_commit_that_was_overtaken_is_a_conflict_although_its_response_was_lost(
        self, backend: Backend
    ) -> None:
        await backend.budgets.commit(FIRST)

        async def overtake() -> None:
            await backend.budgets.commit(OTHER)

        self.faulty_aws.inject("update_item", after_action(overtake), response_lost)

        with pytest.raises(VersionConflict):
            await backend.budgets.commit(SECOND)

        assert await _stored(backend) == OTHER

    @clause
    async def test_a_repeated_commit_does_not_overwrite_later_commits(
        self, backend: Backend
    ) -> None:
        await backend.budgets.commit(FIRST)
        third = replace(SECOND, version=3, change_id="third", reservations=())

        async def follow() -> None:
            await backend.budgets.commit(third)

        self.faulty_aws.inject("update_item", response_lost_then(follow))

        # It looks like a commit that came too late: the caller reads and decides again.
        with pytest.raises(VersionConflict):
            await backend.budgets.commit(SECOND)

        assert await _stored(backend) == third

    @clause
    async def test_an_account_is_read_and_committed_by_one_request_each(
        self, backend: Backend
    ) -> None:
        await backend.budgets.commit(FIRST)
        await backend.budgets.commit(FIRST)
        await _stored(backend)

        assert [name for name, _ in self.faulty_aws.calls] == ["update_item"] * 2 + ["get_item"]
        assert self.faulty_aws.calls[-1][1]["ConsistentRead"] is True

    @clause
    async def test_a_throttled_read_raises_backend_unavailable(self, backend: Backend) -> None:
        self.faulty_aws.inject("get_item", throttled)

        with pytest.raises(BackendUnavailable):
            await _stored(backend)

    @clause
    async def test_a_commit_is_one_unit_while_few_have_anything_open(
        self, backend: Backend
    ) -> None:
        reservations = tuple(_with_reservations(number) for number in range(IN_THE_FIRST_KILOBYTE))
        await backend.budgets.commit(replace(FIRST, reservations=reservations))

        ((_, written),) = self.faulty_aws.calls

        parts = [*written["Key"].values(), *written["ExpressionAttributeValues"].values()]
        names = [*written["Key"], *written["ExpressionAttributeNames"].values()]
        values = [value for part in parts for value in part.values()]
        assert sum(map(len, names)) + sum(map(len, values)) <= KILOBYTE


async def _stored(backend: Backend) -> SharedBudget | None:
    return await backend.budgets.get(FIRST.tenant, FIRST.name)


def _with_reservations(number: int) -> Reservation:
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
    return Reservation(task_id=task_id, attempt=1, spent=spent, reserved=reserved)


FIRST = SharedBudget(
    tenant="acme",
    name=day_budget_name(START),
    version=1,
    change_id="0d7a3c1e5b9f48629f1c2d3e4f5a6b7c",
    reservations=(_with_reservations(1),),
)
SECOND = replace(
    FIRST,
    version=2,
    change_id="second",
    reservations=(_with_reservations(1), _with_reservations(2)),
)
OTHER = replace(FIRST, version=2, change_id="other", reservations=(_with_reservations(3),))
