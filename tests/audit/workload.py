"""A real history with a bit of everything, on any backend: what the auditor must find in order.

Played by commands, step by step, so that it is the same on each backend: retries, output with a
marker, releases, lost leases, timeouts, a cancellation, resumes, reviews, delays, budgets, two
tenants.
"""

from datetime import timedelta
from typing import Any

from longshore.core.budgets import Budget, BudgetScope, BudgetUnit
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.ports.output import OutputChunk, Stream
from tests.unit.services.harness import (
    APP,
    LEASE,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    task_id,
)
from tests.unit.services.samples import LARGE

OTHER_TENANT = "other"
HOUR = timedelta(hours=1)
PASSES = Failure(category=ErrorCategory.NETWORK, message="no route")
FINAL = Failure(category=ErrorCategory.VALIDATION, message="wrong input")


class JobWorkload:
    """One job being played."""

    def __init__(self, harness: ServiceHarness, request_id: str) -> None:
        self.harness = harness
        self.request_id = request_id

    async def submit(self, *tasks: dict[str, Any]) -> None:
        await self.harness.submit(*tasks, request_id=self.request_id)

    async def apply(self, key: str, command: c.Command) -> TaskRow:
        self.harness.clock.advance(SECOND)
        return await self.harness.transitions.apply_to_task(task_id(key, self.request_id), command)

    async def claim(self, key: str, worker_id: str = "worker-1", *, renewals: int = 0) -> int:
        """The fence of a fresh claim."""
        claim = c.Claim(
            worker_id=worker_id,
            process_id=7,
            lease_duration=LEASE.duration,
            epoch=self.harness.backend.ledger.epoch,
        )
        fence = (await self.apply(key, claim)).fence
        for _ in range(renewals):
            self.harness.clock.advance(LEASE.renew_every)
            await self.apply(key, c.Renew(fence=fence, lease_duration=LEASE.duration))
        return fence

    async def append_output(self, key: str, attempt: int, *entries: int | tuple[int, int]) -> None:
        """Store pieces of output by their sequences; a pair is a marker."""
        await self.harness.backend.output.append(
            task_id(key, self.request_id), [self._chunk(attempt, sequence) for sequence in entries]
        )

    def _chunk(self, attempt: int, entry: int | tuple[int, int]) -> OutputChunk:
        first, last = entry if isinstance(entry, tuple) else (entry, None)
        return OutputChunk(
            attempt=attempt,
            sequence=first,
            at=self.harness.clock.now(),
            stream=Stream.LOST if last else Stream.STDOUT,
            data=b"" if last else b"line\n",
            last=last,
        )

    async def claim_and_complete(self, key: str, result: Any = 1, **claimed: Any) -> TaskRow:
        fence = await self.claim(key, **claimed)
        return await self.complete(key, fence, result)

    async def complete(
        self, key: str, fence: int, result: Any = 1, last_output: int | None = None
    ) -> TaskRow:
        row = await self.harness.task(key, self.request_id)
        key_of_result = f"jobs/{job_id(self.request_id)}/tasks/{key}/result-{row.attempt}.json"
        document = await self.harness.documents.store(result, key_of_result)
        done = c.Complete(fence=fence, result=document, duration=SECOND, last_output=last_output)
        return await self.apply(key, done)

    async def fail(
        self, key: str, fence: int, failure: Failure, last_output: int | None = None
    ) -> TaskRow:
        failed = c.AttemptFailed(
            fence=fence, failure=failure, jitter=0.5, duration=SECOND, last_output=last_output
        )
        row = await self.apply(key, failed)
        if row.due_at is not None:
            self.harness.clock.advance(timedelta(minutes=1))
        return row

    async def resume(self, *keys: str) -> None:
        ids = [task_id(key, self.request_id) for key in keys]
        await self.harness.operator_commands.resume(job_id(self.request_id), ids, by="ann")


async def _pipeline(job: JobWorkload) -> None:
    await job.submit(
        make_task("a", input={"argv": ["echo", LARGE]}),
        make_task("b", "a"),
        make_task("c", "a"),
        make_task("d", "b", "c"),
    )
    fence = await job.claim("a", renewals=2)
    await job.append_output("a", 1, 1, 2, 3)
    await job.complete("a", fence, {"_ref": {"key": "no key"}}, last_output=3)
    await job.harness.dispatch()
    fence = await job.claim("b")
    await job.append_output("b", 1, 1, (2, 4), 5)
    await job.fail("b", fence, PASSES, last_output=5)
    fence = await job.claim("b", "worker-2", renewals=1)
    await job.append_output("b", 2, 1)
    await job.complete("b", fence, LARGE, last_output=1)
    fence = await job.claim("c")
    await job.append_output("c", 1, 1)
    await job.apply("c", c.Release(fence=fence, reason="the worker stops", last_output=1))
    await job.claim_and_complete("c", None, worker_id="worker-2")
    await job.harness.dispatch()
    await job.claim_and_complete("d")
    await job.harness.dispatch()


async def _failing(job: JobWorkload) -> None:
    await job.submit(make_task("a"), make_task("b", "a"), make_task("c"), make_task("d", "b", "c"))
    await job.fail("a", await job.claim("a"), FINAL)
    await job.claim_and_complete("c")
    await job.harness.dispatch()
    await job.resume("a")
    await job.harness.dispatch()
    for key in ("a", "b", "d"):
        await job.claim_and_complete(key)
        await job.harness.dispatch()


async def _cancelled(job: JobWorkload) -> None:
    await job.submit(make_task("a"), make_task("b", "a"), make_task("c"))
    await job.claim_and_complete("c")
    fence = await job.claim("a")
    await job.append_output("a", 1, 1, 2)
    await job.harness.dispatch()
    await job.harness.operator_commands.cancel_job(
        job_id(job.request_id), by="bob", reason="enough"
    )
    await job.apply("a", c.ConfirmCancel(fence=fence, last_output=2))
    await job.harness.dispatch()
    await job.resume("a", "b")
    await job.claim_and_complete("a")
    await job.harness.dispatch()
    await job.claim_and_complete("b")
    await job.harness.dispatch()


async def _stopped(job: JobWorkload) -> None:
    """Ends cancelled, and stays so."""
    await job.submit(make_task("a"), make_task("b", "a"))
    await job.claim("a")
    await job.harness.operator_commands.cancel_job(job_id(job.request_id), by="bob")
    # Its holder is gone: the one who notices ends it.
    leased = await job.harness.task("a", job.request_id)
    await job.apply("a", _end_lease(leased))
    await job.harness.dispatch()


def _end_lease(row: TaskRow) -> c.LeaseEnded:
    return c.LeaseEnded(fence=row.fence, margin=LEASE.skew_margin, holder_dead=True)


async def _reviewed(job: JobWorkload) -> None:
    own = Definition(
        name="reviewed", runner=RunnerKind.COMMAND, overridable=("argv",), requires_review=True
    )
    await job.harness.backend.definitions.put(TENANT, own)
    await job.submit(
        make_task("a", name="reviewed"), make_task("b", "a"), make_task("c", name="reviewed")
    )
    fence = await job.claim("a")
    await job.append_output("a", 1, 1)
    await job.complete("a", fence, "draft", last_output=1)
    await job.apply("a", c.RequestRevision(feedback="shorter", by="ann"))
    await job.claim_and_complete("a", "better")
    await job.apply("a", c.Approve(by="ann"))
    await job.harness.dispatch()
    await job.claim_and_complete("b")
    await job.claim_and_complete("c", "for review")
    await job.harness.dispatch()


async def _silent(job: JobWorkload) -> None:
    await job.submit(
        *(make_task("a"), make_task("b"), make_task("c"), make_task("d", "a")),
        *(make_task("e", maxAttempts=1), make_task("f")),
    )
    await job.claim("a", "worker-1", renewals=1)
    await job.append_output("a", 1, 1, 2)  # more output than reported
    await job.apply("a", _end_lease(await job.harness.task("a", job.request_id)))
    fence = await job.claim("a", "worker-2")
    timed_out = c.TimeOut(
        fence=fence, timeout=HOUR, elapsed=HOUR, signal="SIGKILL", jitter=0.5, last_output=None
    )
    await job.apply("a", timed_out)
    worn_out = Failure(category=ErrorCategory.CRASH, message="received too often")
    dead = c.FailTask(failure=worn_out, source="dlq", margin=LEASE.skew_margin)
    await job.apply("b", dead)
    await job.claim("f")
    job.harness.clock.advance(HOUR)
    await job.apply("f", dead)
    limited = Failure(
        category=ErrorCategory.RATE_LIMIT, message="slow down", retry_after=timedelta()
    )
    await job.fail("c", await job.claim("c"), limited)
    await job.claim_and_complete("c")
    await job.fail("e", await job.claim("e"), PASSES)
    await job.harness.dispatch()


async def _late(job: JobWorkload) -> None:
    await job.submit(make_task("a", delay=86_400), make_task("b", "a"), make_task("c", delay=10))
    job.harness.clock.advance(timedelta(seconds=11))
    await job.claim_and_complete("c")
    await job.harness.dispatch()


async def _parked(job: JobWorkload) -> None:
    """Budgets are used up; all tasks resume except one, which is parked until tomorrow."""
    harness, id_ = job.harness, job_id(job.request_id)
    tasks = [make_task("a"), make_task("b"), make_task("c"), make_task("d"), make_task("e", "c")]
    await harness.producer.submit(TENANT, job.request_id, {"tasks": tasks, "budget": 5})
    fence = await job.claim("a", renewals=1)
    await job.append_output("a", 1, 1, 2)
    await job.apply("a", _used_up(fence, BudgetScope.TASK, last_output=2))
    await job.apply("a", c.AddBudget(amount=Budget(usd=1.0), by="ann", request_id="r1"))
    await job.claim_and_complete("a")
    await job.apply("b", _used_up(await job.claim("b"), BudgetScope.JOB))
    await harness.budget_operations.add(TENANT, id_, Budget(usd=1.0), by="ann", request_id="r1")
    await job.claim_and_complete("b")
    until = harness.clock.now() + timedelta(days=300)
    await job.apply("c", _used_up(await job.claim("c"), BudgetScope.DAY, until=until))
    await job.apply("d", _used_up(await job.claim("d"), BudgetScope.STEP))
    await job.apply("d", c.RequestCancel(by="bob"))
    await harness.dispatch()


def _used_up(fence: int, scope: BudgetScope, **fields: Any) -> c.Park:
    return c.Park(
        fence=fence,
        scope=scope,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=SECOND,
        **fields,
    )


JOBS = {
    "pipeline": _pipeline,
    "failing": _failing,
    "cancelled": _cancelled,
    "stopped": _stopped,
    "reviewed": _reviewed,
    "silent": _silent,
    "late": _late,
    "parked": _parked,
}


async def run_settled_jobs(harness: ServiceHarness) -> None:
    """Run every job until nothing is left to do."""
    for request_id, job in JOBS.items():
        await job(JobWorkload(harness, request_id))
    await harness.producer.submit(OTHER_TENANT, "pipeline", {"tasks": [make_task("a")]})
    (other,) = (await harness.backend.ledger.list_tasks(OTHER_TENANT)).items
    await harness.complete(other.id)
    await harness.dispatch()
    for _ in range(3):
        await harness.backend.events.append(
            tenant=TENANT,
            app=APP,
            entity_id="default",
            body=MessageRejected(queue="default", message_id="1", reason="not JSON"),
            context=EventContext(origin="worker"),
            now=harness.clock.now(),
        )


async def run_open_jobs(harness: ServiceHarness) -> None:
    """Leave a job in the middle: one task runs, one waits, one is to be taken."""
    job = JobWorkload(harness, "running")
    await job.submit(make_task("a"), make_task("b", "a"), make_task("c"), make_task("d"))
    await job.claim("a", renewals=2)
    await job.append_output("a", 1, 1, 2)
    await job.claim_and_complete("d")  # not recorded by the job yet


__all__ = ["JOBS", "OTHER_TENANT", "JobWorkload", "run_open_jobs", "run_settled_jobs"]
