-- What a listing of jobs by name asks for. The state stands before the time, so that those of one
-- name and state are a walk, too; those of one name alone are four walks, merged. Jobs without a
-- name are not in it, and cost nothing.

ALTER TABLE jobs ADD COLUMN name TEXT;

UPDATE jobs SET name = body ->> '$.spec.name' WHERE body ->> '$.spec.name' IS NOT NULL;

CREATE INDEX jobs_by_name ON jobs (tenant, name, state, created_us, id) WHERE name IS NOT NULL;
