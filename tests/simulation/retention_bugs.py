"""Bugs of retention: what is removed, when, and what is remembered of it."""

from tests.planting import Argument, Condition, Replace, Value
from tests.simulation.task_bugs import Bug

_PORT = "testing.memory.retention:MemoryRetention"
_STREAM_PORT = "verification.simulation.stream_backend:StreamRetention"

RETENTION_BUGS = (
    Bug(
        "a job is removed as soon as it has ended",
        at="services.retention:JobRetention._remove_some",
        do=Replace("- now older_than", "now"),
    ),
    Bug(
        "a job is removed while it runs",
        at=f"{_PORT}._has_ended",
        do=Value("return", "job.updated_at <= ended_by"),
    ),
    Bug(
        "the tasks of a removed job stay",
        at=f"{_PORT}.remove_jobs",
        do=Argument("remove()", 1, "[]", nth=1),
    ),
    Bug(
        "the request of a removed job runs again",
        at="testing.memory.ledger:MemoryStore._is_committed",
        do=Condition("removed", "change.expected_version != (row.version if row else 0)"),
    ),
    Bug(
        "output that comes after the removal is stored",
        at="testing.memory.logs:MemoryOutputLog.append",
        do=Condition("removed", False),
    ),
    Bug(
        "a job is removed although it was resumed after it was read",
        at=f"{_STREAM_PORT}.remove_jobs",
        do=Condition("!=", "job is None"),
        profile="aws",
    ),
    Bug(
        "what a process that died in a removal has left is not found",
        at=f"{_STREAM_PORT}.remove_remains",
        do=Replace("list()", "[]"),
        profile="aws",
    ),
    Bug(
        "the sweeper on AWS removes a job whose age is that of its creation",
        at=f"{_PORT}._has_ended",
        do=Replace("updated_at", "job.spec.created_at"),
        profile="aws",
    ),
)
