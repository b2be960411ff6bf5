"""How a job comes by its tasks: those it begins with, and those that are added."""

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.jobs import job
from longshore.core.jobs.job import AddTasks
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.rows import IntentKind, JobRow
from longshore.core.tasks.states import JobState
from tests.factories import NOON, a_cancel_request, a_document, a_job, a_job_spec, an_intent
from tests.unit.core.job_commands import bodies, change_of, refusal_of

GRAPH = a_document('{"keys":["t0"]}')
PRODUCER = EventContext(origin="producer", source="user")


class TestCreate:
    TASKS = (
        e.TaskSummary(key="t0", name="command"),
        e.TaskSummary(key="t1", name="command", depends_on=("t0",)),
    )

    def test_a_new_job_runs_and_its_event_lists_its_tasks(self) -> None:
        spec = a_job_spec("request-7")

        change = job.create(spec, self.TASKS, GRAPH, now=NOON, change_id="first")

        assert (change.expected_version, change.row.version) == (0, 1)
        assert (change.row.change_id, change.row.updated_at) == ("first", NOON)
        assert (change.row.total, change.row.round) == (2, 1)
        assert (change.row.state, change.row.graph) == (JobState.RUNNING, GRAPH)
        assert change.row.intents == ()
        assert bodies(change) == [
            e.JobCreated(job_id=spec.id, request_id="request-7", tasks=self.TASKS, total_tasks=2)
        ]

    def test_the_event_is_in_the_history_of_the_job(self) -> None:
        spec = a_job_spec()

        change = job.create(spec, self.TASKS, GRAPH, now=NOON, change_id="first")

        (event,) = change.events
        assert (event.entity, event.sequence, event.at) == (f"JOB#{spec.id}", 1, NOON)
        assert (event.tenant, event.app, event.context) == ("acme", "shop", PRODUCER)
        assert (change.row.last_sequence, change.row.last_event_at) == (1, NOON)

    def test_rows_that_are_still_to_be_created_are_an_intent(self) -> None:
        intent = an_intent(IntentKind.CREATE, numbers=NumberSet.below(2), round=1)

        change = job.create(
            a_job_spec(), self.TASKS, GRAPH, now=NOON, change_id="first", intent=intent
        )

        assert change.row.intents == (intent,)


class TestAddTasks:
    NEW = (e.TaskSummary(key="t3", name="command", depends_on=("t0",)),)

    def test_a_running_job_takes_more_tasks(self) -> None:
        row = a_job(3, completed=[0])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (change.row.total, change.row.graph) == (4, GRAPH)
        assert change.row.completed == NumberSet([0])
        assert bodies(change) == [
            e.JobTasksAdded(
                job_id=row.id, new_tasks=self.NEW, previous_total_tasks=3, total_tasks_now=4
            )
        ]
        assert change.events[0].context == PRODUCER

    def test_rows_that_are_still_to_be_created_are_one_more_intent(self) -> None:
        first, second = an_intent(id="first"), an_intent(IntentKind.CREATE, id="second")

        change = change_of(
            a_job(intents=(first,)), AddTasks(tasks=self.NEW, graph=GRAPH, intent=second)
        )

        assert change.row.intents == (first, second)

    def test_old_tasks_that_get_dependents_are_remembered(self) -> None:
        row = a_job(3, with_added_dependents=NumberSet([0]))

        change = change_of(
            row, AddTasks(tasks=self.NEW, graph=GRAPH, with_added_dependents=NumberSet([2]))
        )

        assert change.row.with_added_dependents == NumberSet([0, 2])

    def test_a_failed_job_runs_again_with_new_tasks(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (change.row.state, change.row.finished_at) == (JobState.RUNNING, None)

    def test_a_failed_job_stays_failed_if_the_new_tasks_stand_behind_its_failure(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH, blocked=NumberSet([2])))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, NOON)
        assert change.row.blocked == NumberSet([1, 2])

    @pytest.mark.parametrize(
        ("row", "described"),
        [
            (a_job(1, completed=[0]), "completed"),
            (a_job(1, cancelled=[0]), "cancelled"),
            (a_job(1, cancel=a_cancel_request()), "being cancelled"),
        ],
        ids=["completed", "cancelled", "being cancelled"],
    )
    def test_a_job_that_has_ended_or_is_to_end_takes_no_more(
        self, row: JobRow, described: str
    ) -> None:
        refusal = refusal_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (refusal.reason, refusal.detail) == (RefusalReason.ENDED, f"the job is {described}")
