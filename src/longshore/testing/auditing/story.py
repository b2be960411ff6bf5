"""A task's events, one after the other: what they add up to, and where they contradict each other.

The walk knows who holds the task at each place of the history, so it is here that the laws of
leases (2), of stale writers (3), of ends (4), of rounds (6) and of attempts (11) are held against
each single event. What is left at the end is held against the row by ``agreement``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.evidence import Event, Lease, Task
from longshore.testing.auditing.violation import Violation

_RESULT = re.compile(rf"{v.BLOB}jobs/.*/result-(\d{{1,9}})\.json")


class Moment(NamedTuple):
    """When something was told, and when the event before it was: "now" fits both."""

    at_us: int
    before_us: int | None

    def fits(self, kept_us: int | None) -> bool:
        """Whether a row may have this as the same moment."""
        return kept_us is not None and v.could_be_now(kept_us, self.at_us, self.before_us)


class Outcome(NamedTuple):
    """How an attempt ended."""

    by_holder: bool  # False: somebody ended the lease of a silent holder
    last_output: int | None


class Beginning(NamedTuple):
    """A place where the task was sent on or claimed."""

    position: int
    sequence: int
    type: str


class Story:
    """What the events of one task say."""

    def __init__(self, task: Task, events: Sequence[Event]) -> None:
        self._task_id = task.id
        self._max_attempts = task.max_attempts
        self._not_before_us = task.not_before_us
        self.violations: list[Violation] = []
        self.state = v.WAITING
        self.round = 1
        self.attempt = 0
        self.attempts_used = 0
        self.fence = 0
        self.lease: Lease | None = None
        self.revision = 0
        self.due: Moment | int | None = None  # the moment of the event, or one that it names
        self.started_us: int | None = None
        self.finished: Moment | None = None
        self.last_output: int | None = None
        self.result: str | None = None
        self.failure: str | None = None
        self.approvals = 0  # and other events that share their commit with the next
        self.rounds: dict[int, int] = {}  # positions at which rounds after the first began
        self.beginnings: list[Beginning] = []
        self.outcomes: dict[int, Outcome] = {}  # by attempt
        self.completed_at: int | None = None  # positions
        self.failed_at: list[int] = []
        self._dispatched: set[int] = set()  # rounds
        self._approved = False  # by the event before this one
        self._added = False  # to its budget, by the event before this one
        before: int | None = None
        for event in events:
            self._now = Moment(event.at_us, before)
            self._tell(event)
            before = event.at_us

    def _wrong(self, invariant: int, text: str) -> None:
        self.violations.append(Violation(invariant, self._task_id, text))

    def _tell(self, event: Event) -> None:
        says: dict[str, Any] = event.says
        if self._approved and event.type != v.TASK_COMPLETED:
            self._wrong(5, f"{_named(event)} stands between its approval and its completion")
        if self.state in v.TERMINAL and not self._begins_a_round(event, says):
            self._wrong(4, f"{_named(event)} comes after it had {_ended(self.state)}")
            return  # what is terminal stays so
        self._approved = False
        _TELL[event.type](self, event, says)
        self._added = event.type == v.TASK_BUDGET

    def _begins_a_round(self, event: Event, says: dict[str, Any]) -> bool:
        if event.type not in (v.TASK_PENDING, v.TASK_WAITING) or self.state == v.COMPLETED:
            return False
        return bool(says["round"] > self.round)

    def _pending(self, event: Event, says: dict[str, Any]) -> None:
        self._in_round(event, says)
        if says["round"] in self._dispatched:
            self._wrong(6, f"{_named(event)} sends it on a second time in round {self.round}")
        elif self.state != v.WAITING:
            self._wrong(6, f"{_named(event)} sends it on while it is {self.state}")
        self._dispatched.add(says["round"])
        self.beginnings.append(Beginning(event.position, event.sequence, event.type))
        named, wish = says["due_at_us"], self._not_before_us
        if _in_ticks(named) != _in_ticks(wish) and (
            named is not None or (wish is not None and wish > event.at_us)
        ):
            self._wrong(11, f"{_named(event)} makes it due at another time than was asked for")
        self._again(self._now if named is None else named)

    def _waiting(self, event: Event, says: dict[str, Any]) -> None:
        if says["round"] == self.round:
            self._wrong(4, f"{_named(event)} puts it back in round {self.round}")
        self._in_round(event, says)
        self.state = v.WAITING

    def _in_round(self, event: Event, says: dict[str, Any]) -> None:
        if says["round"] == self.round:
            return
        if self.state not in v.TERMINAL:
            text = f"{_named(event)} begins round {says['round']} before round {self.round} ended"
            self._wrong(4, text)
        self.round = says["round"]
        self.rounds.setdefault(self.round, event.position)
        self.state = v.WAITING
        self.attempts_used = 0
        self.finished = self.result = self.failure = None

    def _again(self, due: Moment | int) -> None:
        self.state, self.due, self.lease = v.PENDING, due, None

    def _claimed(self, event: Event, says: dict[str, Any]) -> None:
        attempt, fence, started = says["attempt_number"], says["fence"], says["started_at_us"]
        worker = says["worker_id"]
        if self.lease is not None:
            self._wrong(2, f"{worker!r} claims it while {self.lease.worker_id!r} holds its lease")
        elif self.state == v.WAITING:
            self._wrong(6, f"{worker!r} claims it before it was sent on")
        elif self.state != v.PENDING:
            self._wrong(5, f"{worker!r} claims it while it is {self.state}")
        if attempt != self.attempt + 1:
            self._wrong(2, f"attempt {attempt} begins after attempt {self.attempt}")
        if fence <= self.fence:
            self._wrong(2, f"fence {fence} is given out after fence {self.fence}")
        if self.attempts_used >= self._max_attempts:
            self._wrong(11, f"attempt {attempt} begins with all {self._max_attempts} used up")
        if type(self.due) is int and started < self.due - self.due % v.TICK_US:
            self._wrong(11, f"attempt {attempt} begins before it was due")
        if says["effective_until_us"] <= started:
            self._wrong(2, f"the lease of attempt {attempt} ends before it begins")
        if not self._now.fits(started):
            self._wrong(5, f"attempt {attempt} began at another time than its event says")
        self.beginnings.append(Beginning(event.position, event.sequence, event.type))
        self.state, self.due, self.last_output = v.PROCESSING, None, None
        self.attempt, self.fence, self.started_us = attempt, fence, started
        self.lease = Lease(worker, fence, started, says["effective_until_us"], 0)

    def _renewed(self, event: Event, says: dict[str, Any]) -> None:
        lease = self._held(event, says)
        if lease is None:
            return
        if says["worker_id"] != lease.worker_id:
            text = f"{says['worker_id']!r} renews the lease of {lease.worker_id!r}"
            self._wrong(3, text)
        # A clock that stands before the claim's is told as no time at all.
        renewed_us = lease.since_us + says["elapsed_us"]
        if renewed_us >= lease.until_us:
            self._wrong(3, f"{_named(event)} renews a lease that had run out")
        if says["elapsed_us"] and not self._now.fits(renewed_us):
            self._wrong(5, f"{_named(event)} was told at another time than it says")
        if says["number"] != lease.heartbeats + 1:
            self._wrong(5, f"heartbeat {says['number']} follows heartbeat {lease.heartbeats}")
        until = says["effective_until_us"]
        self.lease = lease._replace(until_us=until, heartbeats=says["number"])

    def _held(self, event: Event, says: dict[str, Any]) -> Lease | None:
        """The lease that is live here; the event must belong to it."""
        if self.lease is None:
            self._wrong(3, f"{_named(event)} speaks for a lease that nobody held")
        self._of_this_attempt(event, says["attempt_number"])
        return self.lease

    def _of_this_attempt(self, event: Event, attempt: int | None) -> None:
        if attempt != self.attempt:
            self._wrong(3, f"{_named(event)} of attempt {attempt} comes in attempt {self.attempt}")

    def _outcome(self, event: Event, says: dict[str, Any]) -> None:
        self._held(event, says)
        self.lease = None
        self.last_output = says["last_output"]
        by_holder = event.origin == v.HOLDER
        if not by_holder and self.last_output is not None:
            self._wrong(8, f"{_named(event)} names the last output, and no holder told it")
        self.outcomes[says["attempt_number"]] = Outcome(by_holder, self.last_output)

    def _count(self, category: str) -> None:
        self.attempts_used += category not in v.UNCOUNTED
        self.failure = category

    def _retried(self, event: Event, says: dict[str, Any]) -> None:
        self._outcome(event, says)
        self._count(says["error_category"])
        if self.attempts_used >= self._max_attempts:
            self._wrong(11, f"{_named(event)} tries again with all {self._max_attempts} used up")
        self._again(says["due_at_us"])

    def _released(self, event: Event, says: dict[str, Any]) -> None:
        self._outcome(event, says)
        self._again(self._now)

    def _parked(self, event: Event, says: dict[str, Any]) -> None:
        self._outcome(event, says)
        self.state, self.due = v.PARKED, says["due_at_us"]

    def _unparked(self, event: Event, says: dict[str, Any]) -> None:
        if self.state != v.PARKED:
            self._wrong(5, f"{_named(event)} comes while it is {self.state}")
        # In one commit with what was added for it.
        self.approvals += self._added
        self._again(self._now)

    def _budget(self, event: Event, says: dict[str, Any]) -> None:
        """It may be added to at any time, and nothing else changes by it."""

    def _end(self, state: str) -> None:
        self.state, self.due, self.finished = state, None, self._now

    def _worked(self, event: Event, says: dict[str, Any]) -> None:
        """An outcome with a result; one that is kept elsewhere is called after its attempt."""
        self._outcome(event, says)
        self.result, self.failure = says["output"], None
        kept = _RESULT.fullmatch(self.result or "")
        if kept and int(kept[1]) != self.attempt:
            self._wrong(
                3, f"{_named(event)} of attempt {self.attempt} has attempt {kept[1]}'s result"
            )

    def _completed(self, event: Event, says: dict[str, Any]) -> None:
        if self.state == v.IN_REVIEW:
            seen = (self.attempt, self.result, self.last_output)
            if (says["attempt_number"], says["output"], says["last_output"]) != seen:
                self._wrong(5, f"{_named(event)} is not of the work that was reviewed")
        else:
            self._worked(event, says)
        self.result = says["output"]
        if self.completed_at is None:
            self.completed_at = event.position
        self._end(v.COMPLETED)

    def _submitted(self, event: Event, says: dict[str, Any]) -> None:
        self._worked(event, says)
        self.state = v.IN_REVIEW

    def _failed(self, event: Event, says: dict[str, Any]) -> None:
        if self.state == v.PENDING and event.origin != v.HOLDER:
            # Ended from outside, between two attempts.
            self._of_this_attempt(event, says["attempt_number"] or 0)
            self._of_no_attempt(event, says)
            self.failure = says["error_category"]
        else:
            self._outcome(event, says)
            used = self.attempts_used
            self._count(says["error_category"])
            if says["source"] == v.FROM_DEAD_LETTER:
                self.attempts_used = used
        if says["retry_count"] != self.attempts_used:
            told, used = says["retry_count"], self.attempts_used
            self._wrong(5, f"{_named(event)} tells of {told} used attempts, and there were {used}")
        self.failed_at.append(event.position)
        self._end(v.FAILED)

    def _timed_out(self, event: Event, says: dict[str, Any]) -> None:
        self._outcome(event, says)
        self._count(v.TIMED_OUT)
        self.failed_at.append(event.position)
        self._end(v.FAILED)

    def _cancelled(self, event: Event, says: dict[str, Any]) -> None:
        if says["attempt_number"] is not None:
            self._outcome(event, says)
        else:
            self._of_no_attempt(event, says)
        self._end(v.CANCELLED)

    def _of_no_attempt(self, event: Event, says: dict[str, Any]) -> None:
        """Ended from outside, while nobody held it."""
        if self.lease is not None:
            self._wrong(3, f"{_named(event)} passes over {self.lease.worker_id!r}, who holds it")
            self.lease = None
        if says["last_output"] is not None:
            self._wrong(8, f"{_named(event)} names the last output of no attempt")

    def _revision(self, event: Event, says: dict[str, Any]) -> None:
        self._reviewed(event)
        if says["revision"] != self.revision + 1:
            self._wrong(5, f"revision {says['revision']} follows revision {self.revision}")
        self.revision = says["revision"]
        self.attempts_used, self.result = 0, None
        self._again(self._now)

    def _approval(self, event: Event, says: dict[str, Any]) -> None:
        self._reviewed(event)
        self.approvals += 1
        self._approved = True

    def _reviewed(self, event: Event) -> None:
        if self.state != v.IN_REVIEW:
            self._wrong(5, f"{_named(event)} comes while it is {self.state}")


_Tell = Callable[[Story, Event, dict[str, Any]], None]

_TELL: dict[str, _Tell] = {
    v.TASK_PENDING: Story._pending,
    v.TASK_WAITING: Story._waiting,
    v.TASK_STARTED: Story._claimed,
    v.TASK_HEARTBEAT: Story._renewed,
    v.TASK_RETRIED: Story._retried,
    v.TASK_RELEASED: Story._released,
    v.TASK_PARKED: Story._parked,
    v.TASK_UNPARKED: Story._unparked,
    v.TASK_BUDGET: Story._budget,
    v.TASK_COMPLETED: Story._completed,
    v.TASK_SUBMITTED: Story._submitted,
    v.TASK_FAILED: Story._failed,
    v.TASK_TIMEOUT: Story._timed_out,
    v.TASK_CANCELLED: Story._cancelled,
    v.TASK_REVISION: Story._revision,
    v.TASK_APPROVED: Story._approval,
}


def _named(event: Event) -> str:
    return f"{event.type} (event {event.sequence})"


def _in_ticks(at_us: int | None) -> int | None:
    """A moment as events tell it: some backends keep it more exactly than others."""
    return None if at_us is None else at_us - at_us % v.TICK_US


def _ended(state: str) -> str:
    return {v.FAILED: "failed", v.CANCELLED: "been cancelled"}.get(state, "completed")
