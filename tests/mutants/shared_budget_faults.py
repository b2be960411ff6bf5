"""Faults that the contract of the accounts must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Condition, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteBudgets"
_MEMORY = "contract/test_memory.py::TestMemoryBudgets"
_STORED = "adapters/sqlite/test_budgets.py"

_fault = partial(Fault, part=Part.SHARED_BUDGETS)

SHARED_BUDGET_FAULTS = (
    _fault(
        name="a budget is written without a check of its version",
        at="adapters.sqlite.configuration:_UPDATE_BUDGET",
        do=Text("version = ? AND", "? > 0 AND"),
        caught_by=f"{_SQLITE}::test_of_two_at_once_one_wins_and_the_other_gets_a_conflict",
    ),
    _fault(
        name="who begins an account that is there takes its place",
        at="adapters.sqlite.configuration:_INSERT_BUDGET",
        do=Text("DO NOTHING", "DO UPDATE SET body = excluded.body"),
        caught_by=f"{_SQLITE}::test_of_many_who_create_one_budget_exactly_one_wins",
    ),
    _fault(
        name="a commit whose answer was lost is a conflict",
        at="adapters.sqlite.configuration:SqliteBudgets.commit.work",
        do=Condition("change_id", True),
        caught_by=f"{_SQLITE}::test_the_same_commit_again_is_success",
    ),
    _fault(
        name="a commit that came too late is taken for done",
        at="adapters.sqlite.configuration:SqliteBudgets.commit.work",
        do=Condition("!= change_id", False),
        caught_by=f"{_SQLITE}::test_a_commit_from_another_version_is_a_conflict_and_writes_nothing",
    ),
    _fault(
        name="one change is written twice",
        at="adapters.sqlite.configuration:_UPDATE_BUDGET",
        do=Text("change_id <>", "?2 ="),
        caught_by=f"{_SQLITE}::test_what_was_committed_under_a_change_id_is_not_written_again",
    ),
    _fault(
        name="an account that is not stored begins anywhere",
        at="adapters.sqlite.configuration:SqliteBudgets.commit",
        do=Replace("ternary _UPDATE_BUDGET", "$1 if $2 == 1 else $3"),
        caught_by=f"{_SQLITE}::test_a_budget_that_is_not_stored_begins_with_version_one",
    ),
    _fault(
        name="the change of an account is looked for in another tenant",
        at="adapters.sqlite.configuration:_BUDGET_CHANGE_ID",
        do=Text("tenant = ?", "tenant > ?"),
        caught_by=f"{_SQLITE}::test_the_same_commit_again_is_success",
    ),
    _fault(
        name="accounts of all tenants are one",
        at="adapters.sqlite.configuration:SqliteBudgets.get",
        do=Text("tenant = ?", "? > 0"),
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _fault(
        name="the name of an account is not taken at its word",
        at="adapters.sqlite.configuration:SqliteBudgets.get",
        do=Text("AND name =", "AND name LIKE"),
        caught_by=f"{_SQLITE}::test_no_two_budget_names_collide",
    ),
    _fault(
        name="what was spent may be lost with the power",
        at="adapters.sqlite.configuration:SqliteBudgets.commit",
        do=Argument("write()", "durable", "False"),
        caught_by=f"{_STORED}::test_every_commit_of_an_account_is_promised",
    ),
    _fault(
        name="a budget is written without a check of its version in memory",
        at="testing.memory.keyed_stores:MemoryBudgets.commit",
        do=Condition("version", "existing is None and $1"),
        caught_by=f"{_MEMORY}::test_of_two_at_once_one_wins_and_the_other_gets_a_conflict",
    ),
    _fault(
        name="an account that is not stored begins anywhere in memory",
        at="testing.memory.keyed_stores:MemoryBudgets.commit",
        do=Replace("0", "expected"),
        caught_by=f"{_MEMORY}::test_a_budget_that_is_not_stored_begins_with_version_one",
    ),
    _fault(
        name="a commit whose answer was lost is a conflict in memory",
        at="testing.memory.keyed_stores:MemoryBudgets.commit",
        do=Condition("change_id", False),
        caught_by=f"{_MEMORY}::test_the_same_commit_again_is_success",
    ),
    _fault(
        name="accounts of all tenants are one in memory",
        at="testing.memory.keyed_stores:MemoryBudgets.commit",
        do=After("= []", "self._budgets['evil', budget.name] = budget"),
        caught_by=f"{_MEMORY}::test_tenants_do_not_meet",
    ),
)
