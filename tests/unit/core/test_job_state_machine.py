"""Invariants of a job after its tasks end in any order, late, twice or in batches."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.jobs import job
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.job import (
    AddTasks,
    CancelJob,
    EndedTask,
    IntentDone,
    ResumeJob,
    TasksEnded,
)
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.changes import Change, Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow
from longshore.core.tasks.states import JobState, TaskState
from tests.factories import NOON, SECOND, a_document, a_job_spec

OPEN = TaskState.PENDING
COMPLETED, FAILED, CANCELLED = TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED
DOCUMENT = a_document("{}")

Parents = tuple[tuple[int, ...], ...]


def graph_of(parents: Parents) -> Graph:
    keys = tuple(f"t{number}" for number in range(len(parents)))
    return Graph(keys, ("command",) * len(parents), parents)


def summaries(numbers: Iterable[int]) -> tuple[e.TaskSummary, ...]:
    return tuple(e.TaskSummary(key=f"t{number}", name="command") for number in numbers)


@st.composite
def parents_of_each(draw: st.DrawFn, most: int = 6) -> Parents:
    """Each task behind up to two of those before it."""
    count = draw(st.integers(1, most))
    return tuple(
        tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=2)))) if number else ()
        for number in range(count)
    )


def an_end(graph: Graph, number: int, state: TaskState, round: int = 1) -> EndedTask:
    blocks = NumberSet() if state is COMPLETED else graph.descendants_of([number])
    return EndedTask(number=number, key=graph.keys[number], round=round, state=state, blocks=blocks)


def a_new_job(parents: Parents) -> JobRow:
    tasks = summaries(range(len(parents)))
    return job.create(a_job_spec(), tasks, DOCUMENT, now=NOON, change_id="0").row


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[Graph, list[EndedTask]]:
    """A graph, and the ends of all its tasks that do not wait behind something."""
    graph = graph_of(draw(parents_of_each()))
    states: list[TaskState | None] = []
    for parents in graph.parents:
        free = all(states[parent] is COMPLETED for parent in parents)
        choices = [COMPLETED, COMPLETED, FAILED, CANCELLED] if free else [None, CANCELLED]
        states.append(draw(st.sampled_from(choices)))
    ended = [an_end(graph, number, state) for number, state in enumerate(states) if state]
    return graph, ended


@given(outcomes(), st.data())
def test_ends_in_any_order_and_number_give_the_same_row_and_one_event(
    outcome: tuple[Graph, list[EndedTask]], data: st.DataObject
) -> None:
    graph, ended = outcome
    deliveries = data.draw(st.permutations([*ended, *ended]))
    size = data.draw(st.integers(1, 4))
    row, emitted = a_new_job(graph.parents), Counter[str]()

    for start in range(0, len(deliveries), size):
        command = TasksEnded(tasks=tuple(deliveries[start : start + size]))
        decision = job.apply(row, command, now=NOON, change_id="1")
        if isinstance(decision, Change):
            row = decision.row
            emitted.update(event.type for event in decision.events)

    by_state = {
        state: NumberSet(t.number for t in ended if t.state is state) for state in TaskState
    }
    assert (row.completed, row.failed, row.cancelled) == (
        by_state[COMPLETED],
        by_state[FAILED],
        by_state[CANCELLED],
    )
    assert row.blocked == graph.descendants_of(row.failed | row.cancelled) - row.ended
    assert row.state.terminal
    assert emitted == Counter(
        {
            "Job Failure Detected": int(bool(row.failed)),
            "Job Completed": int(row.state is JobState.COMPLETED),
            "Job Cancelled": int(row.state is JobState.CANCELLED),
        }
    )


class JobMachine(RuleBasedStateMachine):
    """A job, its tasks as their own rows would have them, and what users do to it.

    The ends of tasks are reported late, twice, or in batches; a cancellation or a resume reaches
    the tasks one by one, after the job's row was changed.
    """

    row: JobRow
    events: list[Event]
    graph: Graph
    tasks: list[tuple[TaskState, int]]  # state and round

    @initialize(parents=parents_of_each(most=4))
    def submit(self, parents: Parents) -> None:
        change = job.create(
            a_job_spec(), summaries(range(len(parents))), DOCUMENT, now=NOON, change_id="0"
        )
        self.row, self.events = change.row, list(change.events)
        self.graph, self.tasks = graph_of(parents), [(OPEN, 1)] * len(parents)

    def state(self, number: int) -> TaskState:
        return self.tasks[number][0]

    def numbers(self, *states: TaskState) -> list[int]:
        return [number for number, (state, _) in enumerate(self.tasks) if state in states]

    def end(self, number: int, state: TaskState) -> None:
        self.tasks[number] = (state, self.tasks[number][1])

    def apply(self, command: job.JobCommand) -> bool:
        before = self.row
        now = NOON + before.version % 3 * SECOND
        decision = job.apply(before, command, now=now, change_id=str(before.version))
        if isinstance(decision, Refusal):
            assert decision.detail
            return False
        assert decision.expected_version == before.version
        assert decision.row.version == before.version + 1
        self.row = decision.row
        self.events += decision.events
        return True

    def free(self) -> list[int]:
        return [
            number
            for number in self.numbers(OPEN)
            if all(self.state(parent) is COMPLETED for parent in self.graph.parents[number])
        ]

    @precondition(lambda self: self.free())
    @rule(
        data=st.data(),
        state=st.sampled_from([COMPLETED, COMPLETED, FAILED]),
        recorded=st.booleans(),
    )
    def a_task_that_may_run_ends(
        self, data: st.DataObject, state: TaskState, recorded: bool
    ) -> None:
        number = data.draw(st.sampled_from(self.free()))
        self.end(number, state)
        if recorded:
            self.record([number])

    @precondition(lambda self: self.numbers(OPEN))
    @rule(data=st.data(), recorded=st.booleans())
    def a_user_cancels_a_task(self, data: st.DataObject, recorded: bool) -> None:
        number = data.draw(st.sampled_from(self.numbers(OPEN)))
        self.end(number, CANCELLED)
        if recorded:
            self.record([number])

    @precondition(lambda self: self.numbers(COMPLETED, FAILED, CANCELLED))
    @rule(data=st.data())
    def the_dispatcher_records_some_ends(self, data: st.DataObject) -> None:
        ended = st.sampled_from(self.numbers(COMPLETED, FAILED, CANCELLED))
        self.record(data.draw(st.lists(ended, min_size=1, max_size=4)))

    def record(self, numbers: Iterable[int]) -> None:
        ended = tuple(an_end(self.graph, number, *self.tasks[number]) for number in numbers)
        statuses: dict[str, str | None] = dict.fromkeys(self.graph.keys)
        needed = job.needs_statuses(self.row, ended)
        before = len(self.events)

        self.apply(TasksEnded(tasks=ended, statuses=statuses if needed else {}))

        for event in self.events[before:]:
            assert getattr(event.body, "task_statuses", statuses) == statuses

    @rule(data=st.data())
    def a_user_adds_a_task(self, data: st.DataObject) -> None:
        number = len(self.tasks)
        behind = data.draw(st.sets(st.integers(0, number - 1), max_size=2))
        graph = graph_of((*self.graph.parents, tuple(sorted(behind))))
        blocked = graph.descendants_of(self.row.failed | self.row.cancelled) & NumberSet([number])

        if self.apply(AddTasks(tasks=summaries([number]), graph=DOCUMENT, blocked=blocked)):
            self.graph = graph
            self.tasks.append((OPEN, 1))

    @rule()
    def a_user_cancels_the_job(self) -> None:
        self.apply(CancelJob(by="ann", later=True))

    @precondition(lambda self: self.row.failed or self.row.cancelled)
    @rule(data=st.data(), at_once=st.booleans())
    def an_operator_resumes_tasks(self, data: st.DataObject, at_once: bool) -> None:
        over = self.row.failed | self.row.cancelled
        expected = NumberSet(data.draw(st.sets(st.sampled_from(list(over)), min_size=1)))
        # What stays behind others stays: it could not go on.
        again = expected - self.graph.descendants_of(over - expected)
        rest = over - again
        round_ = self.row.round + 1

        accepted = self.apply(
            ResumeJob(
                numbers=again,
                keys=[self.graph.keys[number] for number in again],
                blocked=self.graph.descendants_of(rest),
                by="ann",
                later=not at_once,
            )
        )

        if accepted and at_once:
            self.carry_out(
                Intent(id="now", kind=IntentKind.RESUME, numbers=again, round=round_, by="ann")
            )

    @precondition(lambda self: self.row.intents and self.row.intents[0].numbers)
    @rule(data=st.data())
    def an_intent_reaches_one_task(self, data: st.DataObject) -> None:
        intent = self.row.intents[0]
        self.reach(intent, data.draw(st.sampled_from(list(intent.numbers))))

    @precondition(lambda self: self.row.intents)
    @rule()
    def an_intent_is_carried_out(self) -> None:
        intent = self.row.intents[0]
        self.carry_out(intent)
        assert self.apply(IntentDone(intent_id=intent.id))

    def carry_out(self, intent: Intent) -> None:
        for number in intent.numbers:
            self.reach(intent, number)

    def reach(self, intent: Intent, number: int) -> None:
        state, round_ = self.tasks[number]
        if intent.kind is IntentKind.RESUME:
            if round_ < intent.round:
                assert state in (FAILED, CANCELLED)
                self.tasks[number] = (OPEN, intent.round)
        elif state is OPEN and round_ <= intent.round:
            self.end(number, CANCELLED)

    @invariant()
    def the_job_agrees_with_its_tasks(self) -> None:
        for state, numbers in (
            (COMPLETED, self.row.completed),
            (FAILED, self.row.failed),
            (CANCELLED, self.row.cancelled),
        ):
            assert all(self.state(number) is state for number in numbers)

    @invariant()
    def what_is_behind_a_failure_or_cancellation_is_blocked_and_nothing_else(self) -> None:
        row = self.row
        assert row.blocked == self.graph.descendants_of(row.failed | row.cancelled) - row.ended

    @invariant()
    def a_job_that_is_over_knows_since_when(self) -> None:
        assert (self.row.finished_at is not None) == self.row.state.terminal

    @invariant()
    def each_round_emits_one_failure_and_one_end_at_most(self) -> None:
        emitted = Counter(
            (_kind(event.body), event.body.round)
            for event in self.events
            if isinstance(event.body, e.JobCompleted | e.JobCancelled | e.JobFailureDetected)
        )
        assert all(count == 1 for count in emitted.values())
        ended = self.row.state in (JobState.COMPLETED, JobState.CANCELLED)
        assert (("end", self.row.round) in emitted) == ended

    @invariant()
    def the_history_has_no_gap_and_never_goes_back(self) -> None:
        assert [event.sequence for event in self.events] == list(
            range(1, self.row.last_sequence + 1)
        )
        times = [event.at for event in self.events]
        assert times == sorted(set(times))

    def teardown(self) -> None:
        """When everything is carried out and recorded, the job agrees with its tasks."""
        if not hasattr(self, "row"):
            return
        while self.row.intents:
            self.an_intent_is_carried_out()
        self.record(self.numbers(COMPLETED, FAILED, CANCELLED))

        assert list(self.row.ended) == self.numbers(COMPLETED, FAILED, CANCELLED)
        left = NumberSet(self.numbers(OPEN)) - self.row.blocked
        assert (self.row.state is JobState.RUNNING) == bool(left)


def _kind(body: e.EventBody) -> str:
    return "failure" if isinstance(body, e.JobFailureDetected) else "end"


# Shrinking takes long, and is needed only after a failure.
TestJobMachine = pytest.mark.timeout(600)(JobMachine.TestCase)
TestJobMachine.settings = settings(max_examples=100, stateful_step_count=40)
