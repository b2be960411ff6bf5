"""A real history with a bit of everything, on any backend: what the auditor must find in order.

Played by commands, step by step, so that it is the same on each backend: retries, output with a
marker, releases, lost leases, timeouts, a cancellation, resumes, reviews, delays, budgets, two
tenants.
"""

from datetime import timedelta
from typing import Any

from longshore.core import commands as c
from longshore.core.budgets import Budget, Scope
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.event import Context
from longshore.core.events.types import MessageRejected
from longshore.core.failures import ErrorCategory, Failure
from longshore.core.rows import TaskRow
from longshore.ports.output import OutputEntry, Stream
from tests.unit.services.samples import LARGE
from tests.unit.services.stage import (
    APP,
    LEASE,
    SECOND,
    TENANT,
    Stage,
    a_task,
    job_id,
    task_id,
)

OTHER_TENANT = "other"
HOUR = timedelta(hours=1)
PASSES = Failure(category=ErrorCategory.NETWORK, message="no route")
FINAL = Failure(category=ErrorCategory.VALIDATION, message="wrong input")


class Play:
    """One job being played."""

    def __init__(self, stage: Stage, request_id: str) -> None:
        self.stage = stage
        self.request_id = request_id

    async def submit(self, *tasks: dict[str, Any]) -> None:
        await self.stage.submit(*tasks, request_id=self.request_id)

    async def do(self, key: str, command: c.Command) -> TaskRow:
        self.stage.clock.advance(SECOND)
        return await self.stage.transitions.task(task_id(key, self.request_id), command)

    async def claim(self, key: str, worker_id: str = "worker-1", *, renewals: int = 0) -> int:
        """The fence of a fresh claim."""
        claim = c.Claim(
            worker_id=worker_id,
            process_id=7,
            lasts=LEASE.lasts,
            epoch=self.stage.backend.ledger.epoch,
        )
        fence = (await self.do(key, claim)).fence
        for _ in range(renewals):
            self.stage.clock.advance(LEASE.renew_every)
            await self.do(key, c.Renew(fence=fence, lasts=LEASE.lasts))
        return fence

    async def prints(self, key: str, attempt: int, *entries: int | tuple[int, int]) -> None:
        """Store pieces of output by their sequences; a pair is a marker."""
        await self.stage.backend.output.append(
            task_id(key, self.request_id), [self._entry(attempt, one) for one in entries]
        )

    def _entry(self, attempt: int, entry: int | tuple[int, int]) -> OutputEntry:
        first, last = entry if isinstance(entry, tuple) else (entry, None)
        return OutputEntry(
            attempt=attempt,
            sequence=first,
            at=self.stage.clock.now(),
            stream=Stream.LOST if last else Stream.STDOUT,
            data=b"" if last else b"line\n",
            last=last,
        )

    async def complete(self, key: str, result: Any = 1, **claimed: Any) -> TaskRow:
        fence = await self.claim(key, **claimed)
        return await self.completed(key, fence, result)

    async def completed(
        self, key: str, fence: int, result: Any = 1, last_output: int | None = None
    ) -> TaskRow:
        row = await self.stage.task(key, self.request_id)
        place = f"jobs/{job_id(self.request_id)}/tasks/{key}/result-{row.attempt}.json"
        document = await self.stage.documents.keep(result, place)
        done = c.Complete(fence=fence, result=document, duration=SECOND, last_output=last_output)
        return await self.do(key, done)

    async def fail(
        self, key: str, fence: int, failure: Failure, last_output: int | None = None
    ) -> TaskRow:
        failed = c.AttemptFailed(
            fence=fence, failure=failure, roll=0.5, duration=SECOND, last_output=last_output
        )
        row = await self.do(key, failed)
        if row.due_at is not None:
            self.stage.clock.advance(timedelta(minutes=1))
        return row

    async def resume(self, *keys: str) -> None:
        ids = [task_id(key, self.request_id) for key in keys]
        await self.stage.resuming.resume(job_id(self.request_id), ids, by="ann")


async def _pipeline(play: Play) -> None:
    await play.submit(
        a_task("a", input={"argv": ["echo", LARGE]}),
        a_task("b", "a"),
        a_task("c", "a"),
        a_task("d", "b", "c"),
    )
    fence = await play.claim("a", renewals=2)
    await play.prints("a", 1, 1, 2, 3)
    await play.completed("a", fence, {"_ref": {"key": "no key"}}, last_output=3)
    await play.stage.dispatch()
    fence = await play.claim("b")
    await play.prints("b", 1, 1, (2, 4), 5)
    await play.fail("b", fence, PASSES, last_output=5)
    fence = await play.claim("b", "worker-2", renewals=1)
    await play.prints("b", 2, 1)
    await play.completed("b", fence, LARGE, last_output=1)
    fence = await play.claim("c")
    await play.prints("c", 1, 1)
    await play.do("c", c.Release(fence=fence, reason="the worker stops", last_output=1))
    await play.complete("c", None, worker_id="worker-2")
    await play.stage.dispatch()
    await play.complete("d")
    await play.stage.dispatch()


async def _failing(play: Play) -> None:
    await play.submit(a_task("a"), a_task("b", "a"), a_task("c"), a_task("d", "b", "c"))
    await play.fail("a", await play.claim("a"), FINAL)
    await play.complete("c")
    await play.stage.dispatch()
    await play.resume("a")
    await play.stage.dispatch()
    for key in ("a", "b", "d"):
        await play.complete(key)
        await play.stage.dispatch()


async def _cancelled(play: Play) -> None:
    await play.submit(a_task("a"), a_task("b", "a"), a_task("c"))
    await play.complete("c")
    fence = await play.claim("a")
    await play.prints("a", 1, 1, 2)
    await play.stage.dispatch()
    await play.stage.cancelling.cancel(job_id(play.request_id), by="bob", reason="enough")
    await play.do("a", c.ConfirmCancel(fence=fence, last_output=2))
    await play.stage.dispatch()
    await play.resume("a", "b")
    await play.complete("a")
    await play.stage.dispatch()
    await play.complete("b")
    await play.stage.dispatch()


async def _stopped(play: Play) -> None:
    """Ends cancelled, and stays so."""
    await play.submit(a_task("a"), a_task("b", "a"))
    await play.claim("a")
    await play.stage.cancelling.cancel(job_id(play.request_id), by="bob")
    # Its holder is gone: the one who notices ends it.
    held = await play.stage.task("a", play.request_id)
    await play.do("a", _gone(held))
    await play.stage.dispatch()


def _gone(held: TaskRow) -> c.LeaseEnded:
    return c.LeaseEnded(fence=held.fence, margin=LEASE.skew_margin, holder_gone=True)


async def _reviewed(play: Play) -> None:
    own = Definition(name="reviewed", runner=RunnerKind.COMMAND, requires_review=True)
    await play.stage.backend.definitions.put(TENANT, own)
    await play.submit(a_task("a", name="reviewed"), a_task("b", "a"), a_task("c", name="reviewed"))
    fence = await play.claim("a")
    await play.prints("a", 1, 1)
    await play.completed("a", fence, "draft", last_output=1)
    await play.do("a", c.RequestRevision(feedback="shorter", by="ann"))
    await play.complete("a", "better")
    await play.do("a", c.Approve(by="ann"))
    await play.stage.dispatch()
    await play.complete("b")
    await play.complete("c", "for review")
    await play.stage.dispatch()


async def _silent(play: Play) -> None:
    await play.submit(
        *(a_task("a"), a_task("b"), a_task("c"), a_task("d", "a")),
        *(a_task("e", maxAttempts=1), a_task("f")),
    )
    await play.claim("a", "worker-1", renewals=1)
    await play.prints("a", 1, 1, 2)  # more of it than anybody told
    await play.do("a", _gone(await play.stage.task("a", play.request_id)))
    fence = await play.claim("a", "worker-2")
    timed_out = c.TimeOut(
        fence=fence, timeout=HOUR, elapsed=HOUR, signal="SIGKILL", roll=0.5, last_output=None
    )
    await play.do("a", timed_out)
    worn_out = Failure(category=ErrorCategory.CRASH, message="received too often")
    dead = c.FailTask(failure=worn_out, source="dlq", margin=LEASE.skew_margin)
    await play.do("b", dead)
    await play.claim("f")
    play.stage.clock.advance(HOUR)
    await play.do("f", dead)
    limited = Failure(category=ErrorCategory.RATE_LIMIT, message="slow down")
    await play.fail("c", await play.claim("c"), limited)
    await play.complete("c")
    await play.fail("e", await play.claim("e"), PASSES)
    await play.stage.dispatch()


async def _late(play: Play) -> None:
    await play.submit(a_task("a", delay=86_400), a_task("b", "a"), a_task("c", delay=10))
    play.stage.clock.advance(timedelta(seconds=11))
    await play.complete("c")
    await play.stage.dispatch()


async def _parked(play: Play) -> None:
    """Budgets are used up; all goes on but for one task, which rests until tomorrow."""
    stage, id_ = play.stage, job_id(play.request_id)
    tasks = [a_task("a"), a_task("b"), a_task("c"), a_task("d"), a_task("e", "c")]
    await stage.producer.submit(TENANT, play.request_id, {"tasks": tasks, "budget": 5})
    fence = await play.claim("a", renewals=1)
    await play.prints("a", 1, 1, 2)
    await play.do("a", _used_up(fence, Scope.TASK, last_output=2))
    await play.do("a", c.AddBudget(more=Budget(usd=1.0), by="ann", request_id="r1"))
    await play.complete("a")
    await play.do("b", _used_up(await play.claim("b"), Scope.JOB))
    await stage.budgeting.add_to_job(TENANT, id_, Budget(usd=1.0), by="ann", request_id="r1")
    await play.complete("b")
    until = stage.clock.now() + timedelta(days=300)
    await play.do("c", _used_up(await play.claim("c"), Scope.DAY, until=until))
    await play.do("d", _used_up(await play.claim("d"), Scope.STEP))
    await play.do("d", c.RequestCancel(by="bob"))
    await stage.dispatch()


def _used_up(fence: int, scope: Scope, **fields: Any) -> c.Park:
    return c.Park(fence=fence, scope=scope, reason="all is spent", duration=SECOND, **fields)


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


async def come_to_rest(stage: Stage) -> None:
    """Play every job to where nobody can do anything more."""
    for request_id, play in JOBS.items():
        await play(Play(stage, request_id))
    await stage.producer.submit(OTHER_TENANT, "pipeline", {"tasks": [a_task("a")]})
    (other,) = (await stage.backend.ledger.list_tasks(OTHER_TENANT)).items
    await stage.complete(other.id)
    await stage.dispatch()
    for _ in range(2):
        await stage.backend.events.append(
            tenant=TENANT,
            app=APP,
            entity_id="default",
            body=MessageRejected(queue="default", message_id="1", reason="not JSON"),
            context=Context(origin="worker"),
            now=stage.clock.now(),
        )


async def be_at_work(stage: Stage) -> None:
    """Leave a job in the middle: one task runs, one waits, one is to be taken."""
    play = Play(stage, "running")
    await play.submit(a_task("a"), a_task("b", "a"), a_task("c"), a_task("d"))
    await play.claim("a", renewals=2)
    await play.prints("a", 1, 1, 2)
    await play.complete("d")  # of which the job has not heard


__all__ = ["JOBS", "OTHER_TENANT", "Play", "be_at_work", "come_to_rest"]
