"""Invariants of a task after any commands in any order and at any time."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longshore.core.budgets import Budget, BudgetScope
from longshore.core.events.event import Event
from longshore.core.events.types import Usage
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import MAX_REVISIONS
from longshore.core.queues import MessageAction, triage
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Change, Enqueue, Refusal
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.tasks.task import TaskChange, apply, create
from tests.event_folding import fold
from tests.factories import LASTS, MARGIN, NOON, SECOND, a_document, a_failure, a_spec

ROLLS = st.floats(0, 1, exclude_max=True)
PARENTS = NumberSet([1, 2])
SOME_PARENTS = st.sampled_from([NumberSet([1]), NumberSet([2]), PARENTS])
SPENT = Usage(turns=1)
FAILURES = st.sampled_from(
    [
        a_failure(ErrorCategory.NETWORK),
        a_failure(ErrorCategory.RATE_LIMIT),
        a_failure(ErrorCategory.RATE_LIMIT, retry_after=timedelta(hours=5)),
        a_failure(ErrorCategory.CRASH, retry_after=SECOND),
        a_failure(ErrorCategory.AUTH),
    ]
)
CLAIM = c.Claim(worker_id="worker-1", process_id=1, lease_duration=LASTS)

# The fence is put in when the command is given, because it depends on the row.
REPORTS: st.SearchStrategy[Any] = st.one_of(
    st.just(c.Renew(fence=0, lease_duration=LASTS)),
    st.just(c.SaveCheckpoint(fence=0, key="blobs/step")),
    st.just(c.Release(fence=0, reason="shutdown", usage=SPENT)),
    st.builds(
        c.AttemptFailed,
        fence=st.just(0),
        failure=FAILURES,
        jitter=ROLLS,
        duration=st.just(SECOND),
        usage=st.just(SPENT),
    ),
    st.just(c.Complete(fence=0, result=a_document(), duration=SECOND, usage=SPENT)),
    st.builds(
        c.TimeOut,
        fence=st.just(0),
        timeout=st.just(SECOND),
        elapsed=st.just(SECOND),
        signal=st.just("SIGTERM"),
        jitter=ROLLS,
        usage=st.just(SPENT),
    ),
    st.just(c.ConfirmCancel(fence=0, usage=SPENT)),
    st.builds(
        c.Park,
        fence=st.just(0),
        scope=st.sampled_from(BudgetScope),
        reason=st.just("all is spent"),
        duration=st.just(SECOND),
        until=st.none() | st.just(NOON + SECOND),
        usage=st.just(SPENT),
    ),
    st.builds(
        c.LeaseEnded,
        fence=st.just(0),
        margin=st.just(MARGIN),
        holder_dead=st.booleans(),
        begun=st.booleans(),
    ),
)
ADDITIONS = st.builds(
    c.AddBudget,
    amount=st.just(Budget(usd=1.0)),
    by=st.just("ann"),
    request_id=st.sampled_from(["r1", "r2", "r3"]),
)
OPERATOR_COMMANDS: st.SearchStrategy[c.Command] = st.one_of(
    st.builds(c.ParentsCompleted, numbers=SOME_PARENTS),
    st.builds(c.FailTask, failure=FAILURES, source=st.just("dlq"), margin=st.just(MARGIN)),
    st.builds(c.RequestCancel, by=st.just("ann"), round=st.none() | st.integers(1, 4)),
    st.just(c.RequestRevision(feedback="again", by="rita")),
    st.just(c.Approve(by="rita")),
    st.builds(c.Resume, round=st.integers(1, 5), by=st.just("ann")),
    st.just(CLAIM),
    st.just(c.EnqueueAgain()),
    st.builds(c.Unpark, scope=st.sampled_from(BudgetScope), by=st.just("ann"), due=st.booleans()),
    ADDITIONS,
)


class TaskMachine(RuleBasedStateMachine):
    """One task, and everybody who may want something of it."""

    row: TaskRow
    events: list[Event]
    fences: list[int]
    on_disk: tuple[TaskRow, int]  # the last row that was promised, and how many events it had
    now: datetime
    epoch: int

    @initialize(
        awaits=st.sampled_from([NumberSet(), PARENTS]),
        max_attempts=st.integers(1, 3),
        requires_review=st.booleans(),
        retry_on_timeout=st.booleans(),
    )
    def submit(
        self,
        awaits: NumberSet,
        max_attempts: int,
        requires_review: bool,
        retry_on_timeout: bool,
    ) -> None:
        spec = a_spec(
            retry=RetryPolicy(max_attempts=max_attempts),
            requires_review=requires_review,
            retry_on_timeout=retry_on_timeout,
        )
        change = create(spec, awaits, now=NOON, change_id="0")
        self.row, self.events, self.fences = change.row, list(change.events), []
        self.on_disk = (self.row, len(self.events))
        self.now, self.epoch = NOON, 0

    @rule(seconds=st.sampled_from([-30, -1, 0, 1, 20, 50]) | st.floats(-60, 60))
    def time_passes_or_a_clock_goes_back(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def the_machine_loses_power_and_forgets_what_was_not_promised(self) -> None:
        self.row, count = self.on_disk
        self.events = self.events[:count]
        self.epoch += 1

    @precondition(lambda self: self.row.state is TaskState.WAITING)
    @rule(numbers=SOME_PARENTS)
    def parents_complete(self, numbers: NumberSet) -> None:
        self.apply(c.ParentsCompleted(numbers=numbers))

    @precondition(lambda self: self.row.state is TaskState.PENDING)
    @rule(worker=st.sampled_from(["worker-1", "worker-2"]), local=st.booleans())
    def a_worker_claims(self, worker: str, local: bool) -> None:
        # When it is due, so that the run makes progress.
        self.now = max(self.now, self.row.due_at or self.now)
        self.apply(replace(CLAIM, worker_id=worker, local=local))

    @precondition(lambda self: self.row.state is TaskState.PROCESSING)
    @rule(report=REPORTS)
    def the_holder_reports(self, report: Any) -> None:
        self.apply(replace(report, fence=self.row.fence))

    @precondition(lambda self: self.fences)
    @rule(report=REPORTS, data=st.data())
    def a_stale_worker_reports(self, report: Any, data: st.DataObject) -> None:
        fence = data.draw(st.sampled_from([*self.fences, 0, self.row.fence + 1]))
        stale = self.row.lease is None or self.row.lease.fence != fence

        decision = self.apply(replace(report, fence=fence))

        assert not stale or isinstance(decision, Refusal)

    @precondition(lambda self: self.row.state is TaskState.PENDING)
    @rule(report=REPORTS, cancelled=st.booleans())
    def an_attempt_runs(self, report: Any, cancelled: bool) -> None:
        self.a_worker_claims("worker-1", True)
        if cancelled:
            self.apply(c.RequestCancel(by="ann"))
        self.the_holder_reports(report)

    @precondition(lambda self: self.row.state is TaskState.IN_REVIEW)
    @rule()
    def a_reviewer_requests_a_revision(self) -> None:
        self.apply(c.RequestRevision(feedback="again", by="rita"))

    @precondition(lambda self: self.row.state is TaskState.PARKED)
    @rule(due=st.booleans())
    def budget_is_added(self, due: bool) -> None:
        assert self.row.parked is not None
        self.apply(c.Unpark(scope=self.row.parked.scope, by="ann", due=due))

    @precondition(lambda self: self.row.state.terminal)
    @rule(rounds=st.integers(0, 2), completed=SOME_PARENTS | st.just(NumberSet()))
    def an_operator_resumes(self, rounds: int, completed: NumberSet) -> None:
        self.apply(c.Resume(round=self.row.round + rounds, by="ann", completed=completed))

    @rule(command=OPERATOR_COMMANDS)
    def an_operator_sends_a_command(self, command: c.Command) -> None:
        self.apply(command)

    def apply(self, command: c.Command) -> TaskChange | Refusal:
        before = self.row
        if isinstance(command, c.Claim):
            command = replace(command, epoch=self.epoch)
        decision = apply(before, command, now=self.now, change_id=str(before.version))
        if isinstance(decision, Change):
            for check in CHECKS:
                check(before, command, decision)
            self.row = decision.row
            self.events += decision.events
            if decision.durable:
                self.on_disk = (self.row, len(self.events))
            if isinstance(command, c.Claim):
                self.fences.append(decision.row.fence)
        else:
            assert isinstance(decision, Refusal)
            assert decision.detail
        return decision

    @invariant()
    def the_history_adds_up_to_the_row(self) -> None:
        view = fold(self.events)

        assert view.complete
        assert view.state is self.row.state
        assert (view.round, view.attempt, view.fence) == (
            self.row.round,
            self.row.attempt,
            self.row.fence,
        )
        assert view.last_sequence == self.row.last_sequence == len(self.events)

    @invariant()
    def the_row_is_valid(self) -> None:
        row = self.row
        assert (row.lease is not None) == (row.state is TaskState.PROCESSING)
        assert (row.parked is not None) == (row.state is TaskState.PARKED)
        if row.state is not TaskState.PARKED:
            assert (row.due_at is not None) == (row.state is TaskState.PENDING)
        assert (row.enqueued_at is not None) == (row.state is TaskState.PENDING)
        assert (row.finished_at is not None) == row.state.terminal
        assert not row.awaits or row.state in (TaskState.WAITING, TaskState.CANCELLED)
        assert row.cancel is None or row.state in (TaskState.PROCESSING, TaskState.CANCELLED)
        assert row.result is None or row.state is not TaskState.FAILED
        assert row.lease is None or row.lease.fence == row.fence
        assert row.revision <= MAX_REVISIONS

    @invariant()
    def every_moment_of_the_row_is_a_whole_millisecond(self) -> None:
        row = self.row
        moments = [row.updated_at, row.due_at, row.enqueued_at, row.started_at, row.finished_at]
        if row.lease is not None:
            moments += [row.lease.acquired_at, row.lease.expires_at]
        assert all(moment is None or moment.microsecond % 1000 == 0 for moment in moments)

    @invariant()
    def message_triage_agrees_with_the_task(self) -> None:
        row, now = self.row, self.now
        claimed = apply(row, CLAIM, now=now, change_id="?")
        ended = apply(row, c.LeaseEnded(fence=row.fence, margin=MARGIN), now=now, change_id="?")

        action = triage(row, now=now, margin=MARGIN).action

        assert (action is MessageAction.RUN) == isinstance(claimed, Change)
        assert (action is MessageAction.TAKE_OVER) == isinstance(ended, Change)

    @invariant()
    def no_fence_was_issued_twice(self) -> None:
        assert self.fences == sorted(set(self.fences))


def _version_grows_by_one(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    assert change.expected_version == before.version
    assert change.row.version == before.version + 1
    assert change.row.change_id == str(before.version)
    assert change.row.spec is before.spec


def _events_follow_each_other(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    sequence, at = before.last_sequence, before.last_event_at
    for event in change.events:
        assert event.sequence == sequence + 1
        assert at is None or event.at > at
        assert event.at.microsecond % 1000 == 0
        sequence, at = event.sequence, event.at
    assert (change.row.last_sequence, change.row.last_event_at) == (sequence, at)


def _attempts_are_counted(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    claimed = isinstance(command, c.Claim)
    assert change.row.attempt == before.attempt + claimed
    assert (change.row.fence > before.fence) == claimed
    assert 0 <= change.row.attempts_used <= before.spec.retry.max_attempts
    assert change.row.attempts_used <= before.attempts_used + 1
    if change.row.state is TaskState.PENDING:
        assert change.row.rate_limit_waits <= before.spec.retry.rate_limit_wait


def _some_ends_do_not_count(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    limited = isinstance(command, c.AttemptFailed) and (not command.failure.uses_attempt)
    unbegun = isinstance(command, c.LeaseEnded) and not command.begun
    if limited or unbegun or isinstance(command, c.Release | c.Park):
        assert change.row.attempts_used == before.attempts_used


def _only_a_resume_leaves_an_end(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    assert (change.row.round > before.round) == isinstance(command, c.Resume)
    assert not before.state.terminal or isinstance(command, c.Resume)


def _pending_tasks_are_enqueued(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    enqueued = [effect for effect in change.effects if isinstance(effect, Enqueue)]
    if isinstance(command, c.AddBudget) and before.state is TaskState.PENDING:
        assert (enqueued, change.row.due_at) == ([], before.due_at)
        return
    assert len(enqueued) == (change.row.state is TaskState.PENDING)
    for effect in enqueued:
        assert change.row.due_at is not None
        assert effect.at == max(change.row.due_at, change.row.updated_at)
        assert change.row.enqueued_at == change.row.updated_at


def _what_was_allowed_adds_up(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    allowed, row = before.allowance, change.row
    if isinstance(command, c.AddBudget):
        assert row.allowance is not None
        added = command.amount if allowed is None else allowed.added + command.amount
        assert row.allowance.added == added
    else:
        assert row.allowance == allowed


def _what_was_spent_adds_up(before: TaskRow, command: c.Command, change: TaskChange) -> None:
    assert change.row.usage == before.usage + getattr(command, "usage", Usage())


CHECKS: tuple[Callable[[TaskRow, c.Command, TaskChange], None], ...] = (
    _version_grows_by_one,
    _events_follow_each_other,
    _attempts_are_counted,
    _some_ends_do_not_count,
    _only_a_resume_leaves_an_end,
    _pending_tasks_are_enqueued,
    _what_was_allowed_adds_up,
    _what_was_spent_adds_up,
)

# Shrinking takes long, and is needed only after a failure.
TestTaskMachine = pytest.mark.timeout(600)(TaskMachine.TestCase)
TestTaskMachine.settings = settings(max_examples=100, stateful_step_count=40)
