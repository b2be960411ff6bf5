-- Times are whole microseconds since 1970 UTC (…_us), except events.at_ms, which is the wire's.
-- A row's body is JSON and holds everything; the columns beside it exist to find and to compare. A
-- task's spec, which never changes, stands beside its body, so that no transition writes it again.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE jobs (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    state      TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    intents    INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX jobs_by_time ON jobs (tenant, created_us, id);
CREATE INDEX jobs_by_state ON jobs (tenant, state, created_us, id);
CREATE INDEX jobs_with_intents ON jobs (id) WHERE intents > 0;

CREATE TABLE tasks (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    number     INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    state      TEXT NOT NULL,
    due_us     INTEGER,
    rung_us    INTEGER,
    lease_us   INTEGER,
    spec       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX tasks_by_job ON tasks (job_id, number);
CREATE INDEX tasks_by_time ON tasks (tenant, created_us, id);
CREATE INDEX tasks_by_state ON tasks (tenant, state, created_us, id);
CREATE INDEX tasks_due ON tasks (due_us) WHERE due_us IS NOT NULL;
CREATE INDEX tasks_held ON tasks (lease_us) WHERE lease_us IS NOT NULL;

CREATE TABLE events (
    position   INTEGER PRIMARY KEY,
    entity     TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    tenant     TEXT NOT NULL,
    app        TEXT NOT NULL,
    type       TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    origin     TEXT NOT NULL,
    source     TEXT NOT NULL,
    worker_id  TEXT,
    properties TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_entity ON events (entity, tenant, sequence);
CREATE INDEX events_by_type ON events (tenant, type, position);

CREATE TABLE cursors (
    consumer TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE messages (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    queue      TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    key        TEXT,
    body       TEXT NOT NULL,
    sent_us    INTEGER NOT NULL,
    visible_us INTEGER NOT NULL,
    receives   INTEGER NOT NULL DEFAULT 0,
    taken      INTEGER NOT NULL DEFAULT 0,
    receipt    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX messages_visible ON messages (queue, priority, visible_us, id);
CREATE UNIQUE INDEX messages_by_key ON messages (queue, key) WHERE key IS NOT NULL;

CREATE TABLE dead_messages (
    id       INTEGER PRIMARY KEY,
    queue    TEXT NOT NULL,
    priority INTEGER NOT NULL,
    body     TEXT NOT NULL,
    sent_us  INTEGER NOT NULL,
    receives INTEGER NOT NULL
) STRICT;
CREATE INDEX dead_messages_by_queue ON dead_messages (queue, id);

CREATE TABLE output (
    task_id  TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at_us    INTEGER NOT NULL,
    stream   TEXT NOT NULL,
    last     INTEGER,
    data     BLOB NOT NULL,
    PRIMARY KEY (task_id, attempt, sequence)
) WITHOUT ROWID, STRICT;

CREATE TABLE blobs (
    key  TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    file TEXT,
    data BLOB
) STRICT;

CREATE TABLE definitions (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (tenant, name, version)
) WITHOUT ROWID, STRICT;

CREATE TABLE hidden_definitions (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID, STRICT;

CREATE TABLE keys (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    created_us INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX keys_by_tenant ON keys (tenant, created_us, id);

CREATE TABLE nudges (
    worker_id TEXT PRIMARY KEY,
    count     INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
