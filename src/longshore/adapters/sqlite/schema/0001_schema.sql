-- Times are since 1970 UTC, in whole microseconds (…_us) or milliseconds (…_ms). ``docs/explain/store.md``
-- describes how rows and events are packed.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- Texts that many rows refer to by number: tenants, apps, queues, workers, names of jobs.
CREATE TABLE names (
    no   INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
) STRICT;

-- What tasks of the same definition and options have in common, as JSON.
CREATE TABLE kinds (
    no   INTEGER PRIMARY KEY,
    body TEXT NOT NULL UNIQUE
) STRICT;

-- ``id`` is the 15 bytes of a job id, or its text if it has another form; so is ``request_id``.
-- ``completed`` is a bit set, NULL for the empty set and for all tasks of a completed job. ``event_ms``
-- is the time of the last event, NULL if it is ``updated_ms``. ``graph`` is NULL for a job of one
-- task. ``rest`` is JSON with every field that does not have its usual value, NULL if there is none.
CREATE TABLE jobs (
    no          INTEGER PRIMARY KEY,
    id          ANY NOT NULL UNIQUE,
    tenant      INTEGER NOT NULL,
    app         INTEGER NOT NULL,
    name        INTEGER,
    request_id  ANY NOT NULL,
    body_hash   ANY NOT NULL,
    created_us  INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    change_id   ANY NOT NULL,
    updated_ms  INTEGER NOT NULL,
    event_ms    INTEGER,
    sequence    INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    completed   BLOB,
    finished_ms INTEGER,
    intents     INTEGER NOT NULL,
    unreported  INTEGER NOT NULL,
    graph       ANY,
    history     BLOB NOT NULL,
    rest        TEXT
) STRICT;
CREATE INDEX jobs_by_state ON jobs (tenant, state, created_us);
CREATE INDEX jobs_by_name ON jobs (tenant, name, state, created_us) WHERE name IS NOT NULL;
CREATE INDEX jobs_with_intents ON jobs (no) WHERE intents > 0;
CREATE INDEX jobs_unreported ON jobs (no) WHERE unreported > 0;

-- ``no`` is the job's number times 2^20 plus the task's number in its job. Documents are their JSON
-- text, or bytes that refer to a blob. ``unsettled`` is 1 while the task has ended and its job has
-- not recorded the end.
CREATE TABLE tasks (
    no          INTEGER PRIMARY KEY,
    key         TEXT NOT NULL,
    kind        INTEGER NOT NULL,
    tenant      INTEGER NOT NULL,
    queue       INTEGER NOT NULL,
    lane        INTEGER NOT NULL,
    created_us  INTEGER NOT NULL,
    input       ANY,
    parents     ANY,
    dependents  ANY,
    state       INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    change_id   ANY NOT NULL,
    updated_ms  INTEGER NOT NULL,
    event_ms    INTEGER,
    sequence    INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    worker      INTEGER,
    lease_ms    INTEGER,
    due_us      INTEGER,
    awaits      BLOB,
    started_ms  INTEGER,
    finished_ms INTEGER,
    ran_us      INTEGER,
    last_output INTEGER,
    result      ANY,
    unsettled   INTEGER NOT NULL,
    history     BLOB NOT NULL,
    rest        TEXT
) STRICT;
-- The first task of a job is found by its number.
CREATE UNIQUE INDEX tasks_by_key ON tasks (no >> 20, key) WHERE (no & 1048575) > 0;
-- The queue: tasks that wait to be claimed, also those that are not due yet.
CREATE INDEX tasks_ready ON tasks (queue, lane, tenant, due_us) WHERE state = 1;
CREATE INDEX tasks_leased ON tasks (lease_ms) WHERE lease_ms IS NOT NULL;
-- All tasks by time are both together, so that a new task has an entry in one of them only.
CREATE INDEX tasks_open ON tasks (tenant, created_us) WHERE state <> 5;
CREATE INDEX tasks_completed ON tasks (tenant, created_us) WHERE state = 5;
CREATE INDEX tasks_unsettled ON tasks (no) WHERE unsettled > 0;
CREATE INDEX tasks_waiting ON tasks (no) WHERE state = 0;
CREATE INDEX tasks_parked ON tasks (due_us) WHERE state = 4;
CREATE INDEX tasks_failed ON tasks (tenant, finished_ms) WHERE state = 6;

-- Earlier parts of long histories: of the task ``entity``, or of the job with the negated number.
CREATE TABLE history_segments (
    entity         INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    body           BLOB NOT NULL,
    PRIMARY KEY (entity, first_sequence)
) WITHOUT ROWID, STRICT;

-- Events of entities without a row: queues, the health check, operators.
CREATE TABLE other_events (
    no         INTEGER PRIMARY KEY,
    position   INTEGER NOT NULL,
    entity     TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    tenant     INTEGER NOT NULL,
    app        INTEGER NOT NULL,
    type       INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    origin     TEXT NOT NULL,
    source     TEXT NOT NULL,
    worker_id  TEXT,
    properties TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX other_events_by_entity ON other_events (entity, tenant, sequence);

-- The order of all events: one row for each commit, which names its events and holds no content.
CREATE TABLE feed (
    position INTEGER PRIMARY KEY,
    entries  BLOB NOT NULL
) STRICT;
-- In which blocks of 64 positions a tenant and app have events of a type. For most commits the row is
-- there already.
CREATE TABLE feed_types (
    tenant   INTEGER NOT NULL,
    type     INTEGER NOT NULL,
    app      INTEGER NOT NULL,
    block    INTEGER NOT NULL,
    PRIMARY KEY (tenant, type, app, block)
) WITHOUT ROWID, STRICT;

-- Workers that have joined. ``turn`` and ``claim`` are the ids of the instance's last turn and of its
-- last claim that waited. ``ended`` is 1 after another process has ended its leases.
CREATE TABLE workers (
    name     INTEGER PRIMARY KEY,
    instance INTEGER NOT NULL,
    turn     TEXT NOT NULL DEFAULT '',
    claim    TEXT NOT NULL DEFAULT '',
    ended    INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE output (
    task     INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at_us    INTEGER NOT NULL,
    stream   INTEGER NOT NULL,
    last     INTEGER,
    data     BLOB NOT NULL,
    PRIMARY KEY (task, attempt, sequence)
) WITHOUT ROWID, STRICT;

CREATE TABLE blobs (
    key  TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    file TEXT,
    data BLOB
) STRICT;

-- ``deleted`` is 1 for the versions that a definition had when it was deleted.
CREATE TABLE definitions (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    deleted    INTEGER NOT NULL DEFAULT 0,
    body       TEXT NOT NULL,
    PRIMARY KEY (tenant, name, version)
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

-- Queues from which no worker starts tasks. A pause lasts until the queue is resumed; a hold until a
-- moment, after which its row has no effect. It stays until the queue is held again.
CREATE TABLE queue_pauses (
    name      TEXT NOT NULL,
    hold      INTEGER NOT NULL,
    paused_by TEXT NOT NULL,
    reason    TEXT,
    at_us     INTEGER NOT NULL,
    until_us  INTEGER,
    PRIMARY KEY (name, hold)
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
