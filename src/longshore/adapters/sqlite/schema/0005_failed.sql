-- What the health check asks for: which tenants have tasks that failed, and which were the last to.
-- Tasks in any other state are not in it, so it costs nothing until a task fails.

CREATE INDEX tasks_failed ON tasks (tenant, finished_us, id) WHERE state = 'failed';
