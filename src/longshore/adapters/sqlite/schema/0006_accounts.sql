-- What several tasks spend from together. An account is changed only if it is still at the version
-- that its change was decided from; the change that made it what it is stands beside it.

CREATE TABLE accounts (
    tenant    TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    change_id TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
