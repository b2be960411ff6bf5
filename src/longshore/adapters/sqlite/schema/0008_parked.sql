-- Tasks that rest because a budget is used up, by when they go on by themselves.
-- Tasks in any other state are not in it, so it costs nothing until a task is parked.

CREATE INDEX tasks_parked ON tasks (due_us, id) WHERE state = 'parked';
