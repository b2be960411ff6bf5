-- The queues that were held until a moment; one that is past means nothing, and stays until the
-- queue is held anew.

CREATE TABLE held_queues (
    name     TEXT PRIMARY KEY,
    held_by  TEXT NOT NULL,
    reason   TEXT NOT NULL,
    at_us    INTEGER NOT NULL,
    until_us INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
