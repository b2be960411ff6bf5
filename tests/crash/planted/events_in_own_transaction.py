"""New rows are committed, and their events in another transaction."""

from typing import Any

from longshore.adapters.sqlite import ledger, transaction
from longshore.adapters.sqlite.transaction import StoreTransaction

_create_jobs = transaction.create_jobs
_reach = transaction.reach
_transactions: list[StoreTransaction] = []


def _remember_transaction(work: StoreTransaction, creations: Any) -> Any:
    _transactions[:] = [work]
    return _create_jobs(work, creations)


def _commit_rows_first(point: str) -> None:
    if point == "create.rows_written":
        _transactions[0].execute("COMMIT")
        _transactions[0].execute("BEGIN IMMEDIATE")
    _reach(point)


ledger.create_jobs = _remember_transaction
transaction.reach = _commit_rows_first
