"""A task's events, one after the other: what they add up to, and where they contradict each other.

The walk knows who holds the task at each place of the history, so it is here that the laws of
leases (2), of stale writers (3), of ends (4), of rounds (6) and of attempts (11) are held against
each single event. What is left at the end is held against the row by ``agreement``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from longshore.audit import vocabulary as v
from longshore.audit.store_snapshot import EventRecord, LeaseRecord, TaskRecord
from longshore.audit.violation import Violation

_RESULT = re.compile(rf"{v.BLOB}jobs/.*/result-(\d{{1,9}})\.json")


class EventTime(NamedTuple):
    """The times of an event and of the event before it: "now" fits both."""

    at_us: int
    before_us: int | None

    def matches(self, stored_us: int | None) -> bool:
        """Whether a row may have this as the same moment."""
        return stored_us is not None and v.matches_event_time(stored_us, self.at_us, self.before_us)


class RecordedOutcome(NamedTuple):
    """How an attempt ended."""

    by_holder: bool  # False: another process ended the lease of a silent holder
    last_output: int | None


class StartEvent(NamedTuple):
    """A place where the task was sent on or claimed."""

    position: int
    sequence: int
    type: str


class TaskHistory:
    """What the events of one task say."""

    def __init__(self, task: TaskRecord, events: Sequence[EventRecord]) -> None:
        self._task_id = task.id
        self._max_attempts = task.max_attempts
        self._rate_limit_wait_us = task.rate_limit_wait_us
        self._waited_us = 0  # for rate limits, in this round
        self._not_before_us = task.not_before_us
        self.violations: list[Violation] = []
        self.state = v.WAITING
        self.round = 1
        self.attempt = 0
        self.attempts_used = 0
        self.fence = 0
        self.lease: LeaseRecord | None = None
        self.revision = 0
        self.due: EventTime | int | None = None  # the moment of the event, or one that it names
        self._due_before_claim: EventTime | int | None = (
            None  # when it was due before it was claimed
        )
        self.started_us: int | None = None
        self.finished: EventTime | None = None
        self.last_output: int | None = None
        self.result: str | None = None
        self.failure: str | None = None
        self.approvals = 0  # and other events that share their commit with the next
        self.rounds: dict[int, int] = {}  # positions at which rounds after the first began
        self.starts: list[StartEvent] = []
        self.outcomes: dict[int, RecordedOutcome] = {}  # by attempt
        self.completed_at: int | None = None  # positions
        self.failed_at: list[int] = []
        self._dispatched: set[int] = set()  # rounds
        self._approved = False  # by the event before this one
        self._budget_added = False  # to its budget, by the event before this one
        before: int | None = None
        for event in events:
            self._now = EventTime(event.at_us, before)
            self._apply(event)
            before = event.at_us

    def _report(self, invariant: int, text: str) -> None:
        self.violations.append(Violation(invariant, self._task_id, text))

    def _apply(self, event: EventRecord) -> None:
        says: dict[str, Any] = event.properties
        if self._approved and event.type != v.TASK_COMPLETED:
            self._report(5, f"{_describe(event)} is between its approval and its completion")
        if self.state in v.TERMINAL and not self._begins_a_round(event, says):
            self._report(4, f"{_describe(event)} comes after it had {_end_text(self.state)}")
            return  # what is terminal stays so
        self._approved = False
        _HANDLERS[event.type](self, event, says)
        self._budget_added = event.type == v.TASK_BUDGET

    def _begins_a_round(self, event: EventRecord, properties: dict[str, Any]) -> bool:
        if event.type not in (v.TASK_PENDING, v.TASK_WAITING) or self.state == v.COMPLETED:
            return False
        return bool(properties["round"] > self.round)

    def _pending(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._in_round(event, properties)
        if properties["round"] in self._dispatched:
            self._report(6, f"{_describe(event)} sends it on a second time in round {self.round}")
        elif self.state != v.WAITING:
            self._report(6, f"{_describe(event)} sends it on while it is {self.state}")
        self._dispatched.add(properties["round"])
        self.starts.append(StartEvent(event.position, event.sequence, event.type))
        named, requested = properties["due_at_us"], self._not_before_us
        if _rounded_us(named) != _rounded_us(requested) and (
            named is not None or (requested is not None and requested > event.at_us)
        ):
            self._report(11, f"{_describe(event)} makes it due at another time than was asked for")
        self._make_pending(self._now if named is None else named)

    def _waiting(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if properties["round"] == self.round:
            self._report(4, f"{_describe(event)} puts it back in round {self.round}")
        self._in_round(event, properties)
        self.state = v.WAITING

    def _in_round(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if properties["round"] == self.round:
            return
        if self.state not in v.TERMINAL:
            begun = f"begins round {properties['round']} before round {self.round} ended"
            text = f"{_describe(event)} {begun}"
            self._report(4, text)
        self.round = properties["round"]
        self.rounds.setdefault(self.round, event.position)
        self.state = v.WAITING
        self.attempts_used = self._waited_us = 0
        self.finished = self.result = self.failure = None

    def _make_pending(self, due: EventTime | int) -> None:
        self.state, self.due, self.lease = v.PENDING, due, None

    def _claimed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        attempt, fence, started = (
            properties["attempt_number"],
            properties["fence"],
            properties["started_at_us"],
        )
        worker = properties["worker_id"]
        if self.lease is not None:
            self._report(2, f"{worker!r} claims it while {self.lease.worker_id!r} holds its lease")
        elif self.state == v.WAITING:
            self._report(6, f"{worker!r} claims it before it was sent on")
        elif self.state != v.PENDING:
            self._report(5, f"{worker!r} claims it while it is {self.state}")
        if attempt != self.attempt + 1:
            self._report(2, f"attempt {attempt} begins after attempt {self.attempt}")
        if fence <= self.fence:
            self._report(2, f"fence {fence} is given out after fence {self.fence}")
        if self.attempts_used >= self._max_attempts:
            self._report(11, f"attempt {attempt} begins with all {self._max_attempts} used up")
        if type(self.due) is int and started < self.due - self.due % v.TICK_US:
            self._report(11, f"attempt {attempt} begins before it was due")
        if properties["effective_until_us"] <= started:
            self._report(2, f"the lease of attempt {attempt} ends before it begins")
        if not self._now.matches(started):
            self._report(5, f"attempt {attempt} began at another time than its event says")
        self.starts.append(StartEvent(event.position, event.sequence, event.type))
        self._due_before_claim = self.due
        self.state, self.due, self.last_output = v.PROCESSING, None, None
        self.attempt, self.fence, self.started_us = attempt, fence, started
        self.lease = LeaseRecord(worker, fence, started, properties["effective_until_us"], 0)

    def _renewed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        lease = self._current_lease(event, properties)
        if lease is None:
            return
        if properties["worker_id"] != lease.worker_id:
            text = f"{properties['worker_id']!r} renews the lease of {lease.worker_id!r}"
            self._report(3, text)
        # A clock behind that of the claim gives a duration of zero.
        renewed_us = lease.since_us + properties["elapsed_us"]
        if renewed_us >= lease.until_us:
            self._report(3, f"{_describe(event)} renews a lease that had run out")
        if properties["elapsed_us"] and not self._now.matches(renewed_us):
            self._report(5, f"{_describe(event)} was emitted at another time than it says")
        if properties["number"] != lease.heartbeats + 1:
            self._report(
                5, f"heartbeat {properties['number']} follows heartbeat {lease.heartbeats}"
            )
        until = properties["effective_until_us"]
        self.lease = lease._replace(until_us=until, heartbeats=properties["number"])

    def _current_lease(self, event: EventRecord, properties: dict[str, Any]) -> LeaseRecord | None:
        """The lease that is live here; the event must belong to it."""
        if self.lease is None:
            self._report(3, f"{_describe(event)} uses a lease that no worker held")
        self._check_attempt(event, properties["attempt_number"])
        return self.lease

    def _check_attempt(self, event: EventRecord, attempt: int | None) -> None:
        if attempt != self.attempt:
            self._report(
                3, f"{_describe(event)} of attempt {attempt} comes in attempt {self.attempt}"
            )

    def _outcome(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._current_lease(event, properties)
        self.lease = None
        self.last_output = properties["last_output"]
        by_holder = event.origin == v.HOLDER
        if not by_holder and self.last_output is not None:
            self._report(8, f"{_describe(event)} names the last output, but no holder emitted it")
        self.outcomes[properties["attempt_number"]] = RecordedOutcome(by_holder, self.last_output)

    def _count(self, category: str, retry_after_us: int | None = None) -> None:
        self.attempts_used += category != v.RATE_LIMIT or retry_after_us is None
        self.failure = category

    def _retried(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._outcome(event, properties)
        retry_after_us = properties["retry_after_us"]
        self._count(properties["error_category"], retry_after_us)
        if properties["error_category"] == v.RATE_LIMIT and retry_after_us is not None:
            pause_us = properties["due_at_us"] - event.at_us
            self._waited_us += max(pause_us, v.SHORTEST_COUNTED_WAIT_US)
            if self._waited_us > self._rate_limit_wait_us:
                text = f"waits {self._waited_us // 1_000_000} s in all for rate limits"
                self._report(11, f"{_describe(event)} {text}, which is too long")
        if self.attempts_used >= self._max_attempts:
            self._report(
                11, f"{_describe(event)} tries again with all {self._max_attempts} used up"
            )
        self._make_pending(properties["due_at_us"])

    def _released(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._outcome(event, properties)
        # A task that had not begun keeps its place.
        named, due = properties["due_at_us"], self._due_before_claim
        same = due.matches(named) if isinstance(due, EventTime) else named == _rounded_us(due)
        if named is not None and not same:
            self._report(5, f"{_describe(event)} gives it another place than it had")
        self._make_pending(self._now if named is None else named)

    def _parked(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._outcome(event, properties)
        self.state, self.due = v.PARKED, properties["due_at_us"]

    def _unparked(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if self.state != v.PARKED:
            self._report(5, f"{_describe(event)} comes while it is {self.state}")
        # In one commit with what was added for it.
        self.approvals += self._budget_added
        self._make_pending(self._now)

    def _budget(self, event: EventRecord, properties: dict[str, Any]) -> None:
        """It may be added to at any time, and nothing else changes by it."""

    def _end(self, state: str) -> None:
        self.state, self.due, self.finished = state, None, self._now

    def _outcome_with_result(self, event: EventRecord, properties: dict[str, Any]) -> None:
        """An outcome with a result; one that is kept elsewhere is called after its attempt."""
        self._outcome(event, properties)
        self.result, self.failure = properties["output"], None
        match = _RESULT.fullmatch(self.result or "")
        if match and int(match[1]) != self.attempt:
            self._report(
                3, f"{_describe(event)} of attempt {self.attempt} has attempt {match[1]}'s result"
            )

    def _completed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if self.state == v.IN_REVIEW:
            seen = (self.attempt, self.result, self.last_output)
            if (
                properties["attempt_number"],
                properties["output"],
                properties["last_output"],
            ) != seen:
                self._report(5, f"{_describe(event)} is not of the work that was reviewed")
        else:
            self._outcome_with_result(event, properties)
        self.result = properties["output"]
        if self.completed_at is None:
            self.completed_at = event.position
        self._end(v.COMPLETED)

    def _submitted(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._outcome_with_result(event, properties)
        self.state = v.IN_REVIEW

    def _failed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if self.state == v.PENDING and event.origin != v.HOLDER:
            # Ended from outside, between two attempts.
            self._check_attempt(event, properties["attempt_number"] or 0)
            self._check_no_attempt(event, properties)
            self.failure = properties["error_category"]
        else:
            self._outcome(event, properties)
            used = self.attempts_used
            self._count(properties["error_category"], properties["retry_after_us"])
            if properties["source"] == v.FROM_DEAD_LETTER:
                self.attempts_used = used
        if properties["retry_count"] != self.attempts_used:
            named_attempts, used = properties["retry_count"], self.attempts_used
            self._report(
                5,
                f"{_describe(event)} counts {named_attempts} used attempts, not {used}",
            )
        self.failed_at.append(event.position)
        self._end(v.FAILED)

    def _timed_out(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._outcome(event, properties)
        self._count(v.TIMED_OUT)
        self.failed_at.append(event.position)
        self._end(v.FAILED)

    def _cancelled(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if properties["attempt_number"] is not None:
            self._outcome(event, properties)
        else:
            self._check_no_attempt(event, properties)
        self._end(v.CANCELLED)

    def _check_no_attempt(self, event: EventRecord, properties: dict[str, Any]) -> None:
        """Ended by another process, without a lease."""
        if self.lease is not None:
            self._report(
                3, f"{_describe(event)} passes over {self.lease.worker_id!r}, who holds it"
            )
            self.lease = None
        if properties["last_output"] is not None:
            self._report(8, f"{_describe(event)} names the last output of no attempt")

    def _revision(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._reviewed(event)
        if properties["revision"] != self.revision + 1:
            self._report(5, f"revision {properties['revision']} follows revision {self.revision}")
        self.revision = properties["revision"]
        self.attempts_used, self._waited_us, self.result = 0, 0, None
        self._make_pending(self._now)

    def _approval(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._reviewed(event)
        self.approvals += 1
        self._approved = True

    def _reviewed(self, event: EventRecord) -> None:
        if self.state != v.IN_REVIEW:
            self._report(5, f"{_describe(event)} comes while it is {self.state}")


_Handler = Callable[[TaskHistory, EventRecord, dict[str, Any]], None]

_HANDLERS: dict[str, _Handler] = {
    v.TASK_PENDING: TaskHistory._pending,
    v.TASK_WAITING: TaskHistory._waiting,
    v.TASK_STARTED: TaskHistory._claimed,
    v.TASK_HEARTBEAT: TaskHistory._renewed,
    v.TASK_RETRIED: TaskHistory._retried,
    v.TASK_RELEASED: TaskHistory._released,
    v.TASK_PARKED: TaskHistory._parked,
    v.TASK_UNPARKED: TaskHistory._unparked,
    v.TASK_BUDGET: TaskHistory._budget,
    v.TASK_COMPLETED: TaskHistory._completed,
    v.TASK_SUBMITTED: TaskHistory._submitted,
    v.TASK_FAILED: TaskHistory._failed,
    v.TASK_TIMEOUT: TaskHistory._timed_out,
    v.TASK_CANCELLED: TaskHistory._cancelled,
    v.TASK_REVISION: TaskHistory._revision,
    v.TASK_APPROVED: TaskHistory._approval,
}


def _describe(event: EventRecord) -> str:
    return f"{event.type} (event {event.sequence})"


def _rounded_us(at_us: int | None) -> int | None:
    """A time rounded as in events: some backends store it more exactly than others."""
    return None if at_us is None else at_us - at_us % v.TICK_US


def _end_text(state: str) -> str:
    return {v.FAILED: "failed", v.CANCELLED: "been cancelled"}.get(state, "completed")
