"""New rows are committed, and their events in another transaction."""

from typing import Any

import apsw

from longshore.adapters.sqlite import commit

_call = commit.CreateJobs.__call__
_reach = commit.reach
_connections: list[apsw.Connection] = []


def _remember_connection(self: commit.CreateJobs, connection: apsw.Connection) -> Any:
    _connections[:] = [connection]
    return _call(self, connection)


def _commit_rows_first(point: str) -> None:
    if point == "create.rows_written":
        _connections[0].execute("COMMIT")
        _connections[0].execute("BEGIN IMMEDIATE")
    _reach(point)


commit.CreateJobs.__call__ = _remember_connection
commit.reach = _commit_rows_first
