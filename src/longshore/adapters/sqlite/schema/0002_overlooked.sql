-- What the sweeper asks for: ends of tasks that their job does not know of, waiting tasks whose
-- parents have completed, ends of jobs that were not told. A job's ``ended`` is how many of its tasks
-- its row has as ended; of a job that was written before there was this column it says -1.

ALTER TABLE jobs ADD COLUMN ended INTEGER NOT NULL DEFAULT -1;
ALTER TABLE jobs ADD COLUMN untold INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN finished_us INTEGER;

UPDATE tasks
SET finished_us = CAST(round(unixepoch(body ->> 'finished_at', 'subsec') * 1000) AS INTEGER) * 1000
WHERE body ->> 'finished_at' IS NOT NULL;

CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_untold ON jobs (id) WHERE untold > 0;
CREATE INDEX tasks_ended ON tasks (job_id, finished_us) WHERE finished_us IS NOT NULL;
CREATE INDEX tasks_waiting ON tasks (job_id, id) WHERE state = 'waiting';
