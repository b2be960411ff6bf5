"""New rows are committed, and their events in another transaction."""

from typing import Any

from longshore.adapters.sqlite import creation, ledger
from longshore.adapters.sqlite.transaction import StoreTransaction

_create_jobs = creation.create_jobs
_reach = creation.reach
_transactions: list[StoreTransaction] = []


def _remember_transaction(transaction: StoreTransaction, creations: Any) -> Any:
    _transactions[:] = [transaction]
    return _create_jobs(transaction, creations)


def _commit_rows_first(point: str) -> None:
    if point == "create.rows_written":
        _transactions[0].execute("COMMIT")
        _transactions[0].execute("BEGIN IMMEDIATE")
    _reach(point)


ledger.create_jobs = _remember_transaction
creation.reach = _commit_rows_first
