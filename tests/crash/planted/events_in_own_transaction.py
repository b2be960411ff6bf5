"""A row is committed, and its events in another transaction."""

import apsw

from longshore.adapters.sqlite import commit

_call = commit.Commit.__call__
_reach = commit.reach
_connections: list[apsw.Connection] = []


def _remember_connection(self: commit.Commit, connection: apsw.Connection) -> None:
    _connections[:] = [connection]
    _call(self, connection)


def _commit_rows_first(point: str) -> None:
    if point == "write.rows_written":
        _connections[0].execute("COMMIT")
        _connections[0].execute("BEGIN IMMEDIATE")
    _reach(point)


commit.Commit.__call__ = _remember_connection
commit.reach = _commit_rows_first
