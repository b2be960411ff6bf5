"""What work costs on AWS, in units and requests, held to a budget."""

from pathlib import Path

from tests.aws.costs import (
    ALONE,
    AT_LOAD,
    REMOVED,
    REMOVED_WIDE,
    WIDE,
    WITH_HEARTBEATS,
    all_costs,
    removal_costs,
    seed_cost,
    table,
)
from tests.unit.services.harness import scenario


@scenario
async def test_work_stays_within_its_budget(tmp_path: Path) -> None:
    costs = await all_costs(tmp_path)
    print("\n" + table(costs))  # noqa: T201 - figures

    alone, at_load, beating, wide = (
        costs[name] for name in (ALONE, AT_LOAD, WITH_HEARTBEATS, WIDE)
    )
    for cost in (alone, at_load):
        assert cost.ledger <= 12
        # Every event is written once, and once more for the history of its task or job.
        assert (cost.events, cost.history) == (5, 10)
    assert at_load.sqs <= 4
    assert at_load.put_events <= 1
    # A heartbeat is one write of the row, with its event and the message hidden for longer.
    assert beating.ledger == alone.ledger + 10
    assert beating.events == alone.events + 10
    assert beating.requests["sqs.change_message_visibility_batch"] == 10
    # A task of many costs less than one alone: its job is written for it once and not twice.
    assert wide.ledger < alone.ledger
    assert wide.put_events <= 1
    assert all(cost.dollars < seed_cost(cost) for cost in costs.values())


@scenario
async def test_a_removal_stays_within_its_budget(tmp_path: Path) -> None:
    costs = await removal_costs(tmp_path)
    print("\n" + table(costs))  # noqa: T201 - figures

    alone, wide = costs[REMOVED], costs[REMOVED_WIDE]
    # A tombstone and its entry in an index, which moves twice; and one write for the task.
    assert alone.ledger <= 9
    assert wide.ledger < 1.5
    # As many as they took to write.
    assert alone.history == 10
    # One listing for each of three folders and each step, for all jobs together.
    assert alone.requests["s3.list_objects_v2"] <= 3 * 4
