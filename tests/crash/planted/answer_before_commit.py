"""A commit is answered at once, and written when the next one comes."""

from longshore.adapters.sqlite.ledger import SqliteLedger
from longshore.ports.ledger import AnyChange

_commit = SqliteLedger.commit
_waiting: list[tuple[AnyChange, ...]] = []


async def _commit_later(self: SqliteLedger, *changes: AnyChange) -> tuple[()]:
    while _waiting:
        await _commit(self, *_waiting.pop())
    # Tasks that run are left alone: they would not get far.
    if changes[0].expected_version:
        await _commit(self, *changes)
    else:
        _waiting.append(changes)
    return ()


SqliteLedger.commit = _commit_later
