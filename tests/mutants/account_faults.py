"""Faults that the contract of the accounts must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteAccounts"
_MEMORY = "contract/test_memory.py::TestMemoryAccounts"
_KEPT = "adapters/sqlite/test_accounts.py"

_fault = partial(Fault, part=Part.ACCOUNTS)
_in_sqlite = partial(_fault, file="adapters/sqlite/accounts.py")
_in_memory = partial(_fault, file="adapters/memory/accounts.py")

ACCOUNT_FAULTS = (
    _in_sqlite(
        name="an account is written whatever its version",
        old="AND version = ? AND change_id",
        new="AND ? > 0 AND change_id",
        caught_by=f"{_SQLITE}::test_of_two_at_once_one_wins_and_the_other_is_told_of_the_conflict",
    ),
    _in_sqlite(
        name="who begins an account that is there takes its place",
        old="ON CONFLICT DO NOTHING",
        new="ON CONFLICT DO UPDATE SET body = excluded.body",
        caught_by=f"{_SQLITE}::test_of_many_who_begin_one_account_exactly_one_wins",
    ),
    _in_sqlite(
        name="a commit whose answer was lost is a conflict",
        old="if not there or there[0][0] != account.change_id:",
        new="if True:",
        caught_by=f"{_SQLITE}::test_the_same_commit_again_is_success",
    ),
    _in_sqlite(
        name="a commit that came too late is taken for done",
        old="if not there or there[0][0] != account.change_id:",
        new="if not there:",
        caught_by=f"{_SQLITE}::test_a_commit_from_another_version_is_a_conflict_and_writes_nothing",
    ),
    _in_sqlite(
        name="one change is written twice",
        old=" AND change_id <> ?2",
        new=" AND ?2 = ?2",
        caught_by=f"{_SQLITE}::test_what_was_committed_under_a_change_id_is_not_written_again",
    ),
    _in_sqlite(
        name="an account that is not stored begins anywhere",
        old="sql = _UPDATE if expected else _INSERT",
        new="sql = _UPDATE if expected == 1 else _INSERT",
        caught_by=f"{_SQLITE}::test_an_account_that_is_not_stored_begins_with_version_one",
    ),
    _in_sqlite(
        name="the change of an account is looked for in another tenant",
        old='"SELECT change_id FROM accounts WHERE tenant = ? AND name = ?"',
        new='"SELECT change_id FROM accounts WHERE tenant > ? AND name = ?"',
        caught_by=f"{_SQLITE}::test_the_same_commit_again_is_success",
    ),
    _in_sqlite(
        name="accounts of all tenants are one",
        old='"SELECT body FROM accounts WHERE tenant = ? AND name = ?"',
        new='"SELECT body FROM accounts WHERE ? > 0 AND name = ?"',
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _in_sqlite(
        name="the name of an account is not taken at its word",
        old='"SELECT body FROM accounts WHERE tenant = ? AND name = ?"',
        new='"SELECT body FROM accounts WHERE tenant = ? AND name LIKE ?"',
        caught_by=f"{_SQLITE}::test_whatever_they_are_called_no_two_accounts_meet",
    ),
    _in_sqlite(
        name="what was spent may be lost with the power",
        old="await self._database.write(work)",
        new="await self._database.write(work, promised=False)",
        caught_by=f"{_KEPT}::test_every_commit_of_an_account_is_promised",
    ),
    _in_memory(
        name="an account is written whatever its version in memory",
        old="if expected != (there.version if there else 0):",
        new="if there is None and expected:",
        caught_by=f"{_MEMORY}::test_of_two_at_once_one_wins_and_the_other_is_told_of_the_conflict",
    ),
    _in_memory(
        name="an account that is not stored begins anywhere in memory",
        old="(there.version if there else 0)",
        new="(there.version if there else expected)",
        caught_by=f"{_MEMORY}::test_an_account_that_is_not_stored_begins_with_version_one",
    ),
    _in_memory(
        name="a commit whose answer was lost is a conflict in memory",
        old="if there is not None and there.change_id == account.change_id:",
        new="if False:",
        caught_by=f"{_MEMORY}::test_the_same_commit_again_is_success",
    ),
    _in_memory(
        name="accounts of all tenants are one in memory",
        old="self._accounts[account.tenant, account.name] = account",
        new='self._accounts |= {(t, account.name): account for t in (account.tenant, "evil")}',
        caught_by=f"{_MEMORY}::test_tenants_do_not_meet",
    ),
)
