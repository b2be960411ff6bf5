"""A row is committed, and its events in another transaction."""

import apsw

from longshore.adapters.sqlite.commit import Commit

_write_rows = Commit._write_rows


def _write_events_apart(self: Commit, connection: apsw.Connection, execute: object) -> bool:
    written = _write_rows(self, connection, execute)
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    return written


Commit._write_rows = _write_events_apart
