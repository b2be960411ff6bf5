-- Tombstones: jobs that were removed, so that their request ids are known. ``due_ms`` is 0 while blobs of
-- the job may be left, then ``until_ms``, when the tombstone is removed.
CREATE TABLE removed_jobs (
    id       ANY PRIMARY KEY,
    until_ms INTEGER NOT NULL,
    due_ms   INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX removed_jobs_due ON removed_jobs (due_ms);
