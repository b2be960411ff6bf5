-- Times are whole microseconds since 1970 UTC (…_us), except events.at_ms, which is the wire's.
-- A row's body is JSON and holds all of its fields; the other columns exist to find and to compare
-- rows. A task's spec never changes, so it has a column of its own that no transition rewrites.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- ``ended`` counts the job's tasks whose end the job's row has recorded. ``end_unreported`` is 1
-- while the job has ended and its final event is not emitted yet.
CREATE TABLE jobs (
    id             TEXT PRIMARY KEY,
    tenant         TEXT NOT NULL,
    name           TEXT,
    state          TEXT NOT NULL,
    created_us     INTEGER NOT NULL,
    intents        INTEGER NOT NULL,
    ended          INTEGER NOT NULL,
    end_unreported INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    body           TEXT NOT NULL
) STRICT;
CREATE INDEX jobs_by_time ON jobs (tenant, created_us, id);
CREATE INDEX jobs_by_state ON jobs (tenant, state, created_us, id);
-- The state comes before the time, so that jobs of one name and state are one range; jobs of one
-- name are four ranges, merged. Jobs without a name are left out.
CREATE INDEX jobs_by_name ON jobs (tenant, name, state, created_us, id) WHERE name IS NOT NULL;
CREATE INDEX jobs_with_intents ON jobs (id) WHERE intents > 0;
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_end_unreported ON jobs (id) WHERE end_unreported > 0;

CREATE TABLE tasks (
    id               TEXT PRIMARY KEY,
    tenant           TEXT NOT NULL,
    job_id           TEXT NOT NULL,
    number           INTEGER NOT NULL,
    queue            TEXT NOT NULL,
    created_us       INTEGER NOT NULL,
    state            TEXT NOT NULL,
    due_us           INTEGER,
    enqueued_us      INTEGER,
    lease_expires_us INTEGER,
    finished_us      INTEGER,
    spec             TEXT NOT NULL,
    version          INTEGER NOT NULL,
    body             TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX tasks_by_job ON tasks (job_id, number);
CREATE INDEX tasks_by_time ON tasks (tenant, created_us, id);
CREATE INDEX tasks_by_state ON tasks (tenant, state, created_us, id);
CREATE INDEX tasks_due ON tasks (due_us) WHERE due_us IS NOT NULL;
CREATE INDEX tasks_leased ON tasks (lease_expires_us) WHERE lease_expires_us IS NOT NULL;
CREATE INDEX tasks_ended ON tasks (job_id, finished_us) WHERE finished_us IS NOT NULL;
CREATE INDEX tasks_waiting ON tasks (job_id, id) WHERE state = 'waiting';
-- The health check's questions. Tasks in other states are left out, so the indexes cost nothing
-- until a task fails or is parked.
CREATE INDEX tasks_failed ON tasks (tenant, finished_us, id) WHERE state = 'failed';
CREATE INDEX tasks_parked ON tasks (due_us, id) WHERE state = 'parked';

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

CREATE TABLE deleted_definitions (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID, STRICT;

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    created_us INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, created_us, id);

CREATE TABLE wakeups (
    worker_id TEXT PRIMARY KEY,
    count     INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- Queues from which no worker starts tasks. A queue that is served has no row.
CREATE TABLE paused_queues (
    name      TEXT PRIMARY KEY,
    paused_by TEXT NOT NULL,
    reason    TEXT,
    at_us     INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- Queues that are held until a moment. A row whose moment has passed has no effect; it stays until
-- the queue is held again.
CREATE TABLE held_queues (
    name     TEXT PRIMARY KEY,
    held_by  TEXT NOT NULL,
    reason   TEXT NOT NULL,
    at_us    INTEGER NOT NULL,
    until_us INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- Budgets that several tasks share. A budget is changed only if its version is the one that the
-- change was decided from; ``change_id`` is the id of its last change.
CREATE TABLE budgets (
    tenant    TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    change_id TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
