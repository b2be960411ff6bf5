"""A history that was damaged in one place is rejected, by the number of the law that it breaks."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from longshore.audit.audit import audit
from longshore.audit.store_snapshot import IntentRecord, LeaseRecord
from tests.audit.conftest import SnapshotPair
from tests.audit.forger import Forger

HOUR_US = 3_600_000_000
LEASE = LeaseRecord("worker-9", 1, 0, 1, 0)


class Forgery(NamedTuple):
    """What is done to the history at rest, and what must be found."""

    invariant: int
    message: str
    forge: Callable[[Forger], Forger]


LOST_WORK = [
    Forgery(1, "task 'd' was accepted and is gone", lambda f: f.drop_task("pipeline/d")),
    Forgery(1, "never due", lambda f: f.change_task("late/a", due_us=None)),
    Forgery(1, "waits for no parent", lambda f: f.change_task("late/b", awaits=0)),
    Forgery(1, "ended without a time", lambda f: f.change_task("pipeline/a", finished_us=None)),
    Forgery(
        1,
        "processing without a lease",
        lambda f: f.change_task("late/a", state="processing"),
    ),
    Forgery(1, "still processing", lambda f: f.change_task("late/a", state="processing")),
    Forgery(1, "due and no worker has taken it", lambda f: f.change_task("late/a", due_us=1)),
    Forgery(
        1, "all of its parents completed", lambda f: f.change_task("silent/a", state="completed")
    ),
    Forgery(
        1, "job was cancelled and it is in_review", lambda f: f.change_job("reviewed", cancel_us=1)
    ),
    Forgery(1, "has not recorded", lambda f: f.change_job("pipeline", completed=0b0111)),
    Forgery(1, "has not reported it", lambda f: f.change_job("pipeline", end_emitted_round=0)),
    Forgery(
        1,
        "its resume has not been carried out",
        lambda f: f.change_job("failing", intents=(IntentRecord("resume", 1, 2),)),
    ),
    Forgery(
        1,
        "accepted for 'b' and has not begun",
        lambda f: f.change_properties("failing", 3, tasks=("a", "b")),
    ),
    Forgery(1, "and that is not there", lambda f: f.replace_fields(blobs=frozenset())),
]
LEASES = [
    Forgery(2, "claims it while", lambda f: f.remove_event("pipeline/b", 3)),
    Forgery(
        2,
        "is given out after fence",
        lambda f: f.change_properties(
            "pipeline/b", 4, fence=f.event("pipeline/b", 2).properties["fence"]
        ),
    ),
    Forgery(
        2,
        "attempt 1 begins after attempt 1",
        lambda f: f.change_properties("pipeline/b", 4, attempt_number=1),
    ),
    Forgery(
        2,
        "ends before it begins",
        lambda f: f.change_properties("pipeline/b", 4, effective_until_us=0),
    ),
    Forgery(2, "holds its lease, and it is", lambda f: f.change_task("pipeline/a", lease=LEASE)),
    Forgery(2, "its lease has fence 1", lambda f: f.change_task("late/a", lease=LEASE, fence=7)),
    Forgery(
        2,
        "of an epoch",
        lambda f: f.replace_fields(epoch=0).change_task("pipeline/a", fence=1 << 40),
    ),
    Forgery(
        3,
        "renews the lease of",
        lambda f: f.change_properties("pipeline/a", 3, worker_id="worker-9"),
    ),
    Forgery(
        3, "that had run out", lambda f: f.change_properties("pipeline/a", 4, elapsed_us=HOUR_US)
    ),
    Forgery(
        3,
        "attempt 1 comes in attempt 2",
        lambda f: f.change_properties("pipeline/b", 5, attempt_number=1),
    ),
    Forgery(
        3,
        "attempt 1 comes in attempt 2",
        lambda f: f.change_properties("pipeline/b", 6, attempt_number=1),
    ),
    Forgery(
        3,
        "of attempt 2 has attempt 1's result",
        lambda f: f.change_properties(
            "pipeline/b",
            6,
            output=str(f.event("pipeline/b", 6).properties["output"]).replace(
                "result-2", "result-1"
            ),
        ),
    ),
    Forgery(3, "that no worker held", lambda f: f.remove_event("pipeline/d", 2)),
    Forgery(3, "passes over", lambda f: f.change_properties("cancelled/a", 3, attempt_number=None)),
    Forgery(3, "which never began", lambda f: f.add_output("pipeline/d", 2, 1)),
]
ENDS = [
    Forgery(
        4,
        "comes after it had completed",
        lambda f: f.add_event("pipeline/a", f.event("pipeline/a", 4)),
    ),
    Forgery(
        4,
        "comes after it had completed",
        lambda f: f.add_event("pipeline/b", f.event("pipeline/b", 4)),
    ),
    Forgery(4, "comes after it had failed", lambda f: f.change_properties("failing/a", 4, round=1)),
    Forgery(4, "no resume of its job has begun it", lambda f: f.remove_event("failing", 3)),
    Forgery(4, "no resume of its job", lambda f: f.change_properties("failing", 3, tasks=())),
    Forgery(
        4,
        "no resume of its job",
        lambda f: f.swap_positions(("failing", 3), ("failing/a", 4)),
    ),
    Forgery(4, "before round 1 ended", lambda f: f.change_properties("pipeline/b", 1, round=2)),
    Forgery(
        4, "round 4 begins after round 1", lambda f: f.change_properties("failing", 3, round=4)
    ),
    Forgery(
        4,
        "comes after Job Completed",
        lambda f: f.add_event("pipeline", f.event("failing", 2)),
    ),
    Forgery(
        7,
        "Job Completed after Job Completed",
        lambda f: f.add_event("pipeline", f.event("pipeline", 2)),
    ),
    Forgery(
        7,
        "Job Failure Detected is emitted twice in round 1",
        lambda f: f.add_event("silent", f.event("silent", 2)),
    ),
    Forgery(7, "of round 7 comes in round 1", lambda f: f.change_properties("silent", 2, round=7)),
    Forgery(7, "which had not failed", lambda f: f.change_properties("silent", 2, failed_key="c")),
    Forgery(7, "counts 3 tasks of 4", lambda f: f.change_properties("pipeline", 2, total_tasks=3)),
    Forgery(
        7,
        "before 'd' had completed",
        lambda f: f.swap_positions(("pipeline", 2), ("pipeline/d", -1)),
    ),
    Forgery(7, "as failed, and that is completed", lambda f: f.change_job("pipeline", failed=1)),
    Forgery(7, "ended in different ways", lambda f: f.change_job("pipeline", failed=1)),
    Forgery(7, "more tasks as ended", lambda f: f.change_job("pipeline", completed=0b11111)),
    Forgery(7, "blocked differ in [3]", lambda f: f.change_job("silent", blocked=0)),
    Forgery(7, "has no time of its end", lambda f: f.change_job("silent", finished_us=None)),
    Forgery(7, "has a time of its end", lambda f: f.change_job("late", finished_us=1)),
    Forgery(
        7,
        "a task failed in round 1, and it has not reported it",
        lambda f: f.remove_event("silent", 2).change_job("silent", failure_emitted_round=0),
    ),
]
AGREEMENT = [
    Forgery(5, "event 2 is missing from its history", lambda f: f.drop_event("pipeline/a", 2)),
    Forgery(5, "event 5 is missing from the end", lambda f: f.drop_event("pipeline/a", 5)),
    Forgery(5, "event 1 is missing", lambda f: f.drop_event("pipeline", 1)),
    Forgery(
        5,
        "there are two events 2",
        lambda f: f.replace_fields(events=(*f.snapshot.events, f.event("pipeline/a", 2))),
    ),
    Forgery(5, "its row ends at 4", lambda f: f.change_task("pipeline/a", last_sequence=4)),
    Forgery(
        5, "another time for its last event", lambda f: f.change_task("late/a", last_event_us=1)
    ),
    Forgery(5, "is not later than event 1", lambda f: f.change_event("pipeline/a", 2, at_us=1)),
    Forgery(
        5, "was committed before event 1", lambda f: f.change_event("pipeline/a", 2, position=0)
    ),
    Forgery(5, "it has events and no row", lambda f: f.drop_task("pipeline/d")),
    Forgery(
        5,
        "there is no row of this job",
        lambda f: f.replace_fields(
            jobs=tuple(job for job in f.snapshot.jobs if job != f.job("late"))
        ),
    ),
    Forgery(5, "version 3 is too low", lambda f: f.change_task("pipeline/a", version=3)),
    Forgery(
        5,
        "began at another time",
        lambda f: f.change_properties("pipeline/a", 2, started_at_us=HOUR_US),
    ),
    Forgery(
        5,
        "heartbeat 9 follows heartbeat 1",
        lambda f: f.change_properties("pipeline/a", 4, number=9),
    ),
    Forgery(
        5,
        "emitted at another time",
        lambda f: f.change_properties("pipeline/a", 4, elapsed_us=1_000),
    ),
    Forgery(
        5, "counts 9 used attempts", lambda f: f.change_properties("silent/b", 2, retry_count=9)
    ),
    Forgery(
        5,
        "revision 3 follows revision 0",
        lambda f: f.change_properties("reviewed/a", 4, revision=3),
    ),
    Forgery(
        5,
        "is not of the work that was reviewed",
        lambda f: f.change_properties("reviewed/a", -1, output="2"),
    ),
    Forgery(
        5,
        "between its approval and",
        lambda f: f.remove_event("reviewed/a", -1).add_event(
            "reviewed/a", f.event("reviewed/a", 2)
        ),
    ),
    Forgery(5, "comes while it is", lambda f: f.remove_event("reviewed/a", 6)),
    Forgery(5, "its graph cannot be read", lambda f: f.change_job("late", keys=None, parents=())),
    Forgery(
        5,
        "adds tasks to another number of them",
        lambda f: f.add_event(
            "late",
            f.event("late", 1),
            type="Job Tasks Added",
            properties={
                "job_id": f.job("late").id,
                "previous_total_tasks": 9,
                "total_tasks_now": 3,
            },
        ),
    ),
    Forgery(5, "event 2 is Job Created", lambda f: f.add_event("late", f.event("late", 1))),
    Forgery(5, "its events add up to round 2", lambda f: f.change_job("failing", round=1)),
    Forgery(5, "add up to number of tasks 4", lambda f: f.change_job("pipeline", total=5)),
    Forgery(
        5,
        "it is found by",
        lambda f: f.replace_fields(mismatches=(("job-x", "it is found by state 'a'"),)),
    ),
    Forgery(
        5,
        "event 2 is missing from its history",  # the first ones may have been removed
        lambda f: f.replace_fields(
            events=tuple(
                event
                for event in f.snapshot.events
                if not (event.entity == "QUEUE#default" and event.sequence == 2)
            )
        ),
    ),
]
DEPENDENCY_ORDER = [
    Forgery(
        6,
        "sends it on while it is in_review",
        lambda f: f.remove_event("reviewed/c", 1).add_event("reviewed/c", f.event("pipeline/a", 1)),
    ),
    Forgery(
        6,
        "came before 'a' had completed",
        lambda f: f.swap_positions(("pipeline/a", 5), ("pipeline/b", 1)),
    ),
    Forgery(
        6,
        "came before 'a' had completed",
        lambda f: f.swap_positions(("pipeline/a", 5), ("pipeline/b", 2)),
    ),
    Forgery(
        6,
        "a second time in round 1",
        lambda f: f.change_event(
            "pipeline/c", 3, type="Task Pending", properties=f.event("pipeline/c", 1).properties
        ),
    ),
    Forgery(6, "claims it before it was sent on", lambda f: f.remove_event("pipeline/d", 1)),
    Forgery(6, "still awaits parents", lambda f: f.change_task("pipeline/d", awaits=0b110)),
    Forgery(6, "that are not its parents", lambda f: f.change_task("late/b", awaits=0b101)),
    Forgery(6, "waits no more for 'a'", lambda f: f.change_task("late/b", awaits=0b100)),
    Forgery(6, "name different parents", lambda f: f.change_task("pipeline/d", parents=("b",))),
]
OUTPUT = [
    Forgery(8, "sequence 2 of attempt 1 is missing", lambda f: f.drop_output("pipeline/a", 1, 2)),
    Forgery(
        8, "sequence 3 of attempt 1 is there twice", lambda f: f.add_output("pipeline/b", 1, 3)
    ),
    Forgery(8, "ends at 2, and its outcome says 3", lambda f: f.drop_output("pipeline/a", 1, 3)),
    Forgery(8, "ends at 4, and its outcome says 3", lambda f: f.add_output("pipeline/a", 1, 4)),
    Forgery(8, "ends at 1, and its outcome says none", lambda f: f.add_output("pipeline/d", 1, 1)),
    Forgery(8, "ends at none, and its outcome says 1", lambda f: f.drop_output("pipeline/b", 2, 1)),
    Forgery(8, "is no marker", lambda f: f.change_output("pipeline/b", 1, 2, stream="stdout")),
    Forgery(8, "it has output and no row", lambda f: f.drop_task("pipeline/b")),
    Forgery(8, "no holder emitted it", lambda f: f.change_properties("silent/a", 4, last_output=2)),
    Forgery(8, "of no attempt", lambda f: f.change_properties("silent/b", 2, last_output=2)),
]
OWNERSHIP = [
    Forgery(9, "it is not the job of request", lambda f: f.change_job("late", request_id="later")),
    Forgery(
        9,
        "created by another request",
        lambda f: f.change_properties("late", 1, request_id="later"),
    ),
    Forgery(
        9, "there are 2 jobs", lambda f: f.replace_fields(jobs=(*f.snapshot.jobs, f.job("late")))
    ),
    Forgery(9, "it is not task 'x'", lambda f: f.change_task("pipeline/d", key="x")),
    Forgery(9, "two tasks 0 in its job", lambda f: f.change_task("pipeline/d", number=0)),
    Forgery(9, "number 2 of its job is another", lambda f: f.change_task("pipeline/d", number=2)),
    Forgery(9, "its job has 4 tasks", lambda f: f.change_task("pipeline/d", number=4)),
    Forgery(11, "9 attempts are used", lambda f: f.change_task("pipeline/a", attempts_used=9)),
    Forgery(
        11,
        "begins with all 1 used up",
        lambda f: f.change_task("pipeline/b", max_attempts=1),
    ),
    Forgery(11, "tries again with all", lambda f: f.change_task("pipeline/b", max_attempts=1)),
    Forgery(11, "it was revised 6 times", lambda f: f.change_task("reviewed/a", revision=6)),
    Forgery(11, "and 3 are allowed", lambda f: f.replace_fields(task_limit=3)),
    Forgery(
        11,
        "before it was due",
        lambda f: f.change_properties("pipeline/b", 3, due_at_us=HOUR_US * 10**6),
    ),
    Forgery(11, "than was asked for", lambda f: f.change_properties("late/c", 1, due_at_us=None)),
    Forgery(13, "it is 'other''s", lambda f: f.change_task("pipeline/d", tenant="other")),
    Forgery(13, "event 2 is 'other''s", lambda f: f.change_event("pipeline/d", 2, tenant="other")),
    Forgery(13, "event 1 is 'other''s", lambda f: f.change_event("pipeline", 1, tenant="other")),
    Forgery(
        13,
        "belongs to another tenant",
        lambda f: f.change_properties("pipeline/d", 2, job_id="job-x"),
    ),
    Forgery(
        13,
        "which is another job's",
        lambda f: f.change_task("late/a", blobs=f.task("pipeline/a").blobs),
    ),
    Forgery(13, "under the key", lambda f: f.change_message("late/a", key="job-x_a")),
    Forgery(13, "is on queue 'mail'", lambda f: f.change_message("late/a", queue="mail")),
]
BUDGETS = [
    Forgery(3, "that no worker held", lambda f: f.remove_event("parked/c", 2)),
    Forgery(
        5,
        "comes while it is pending",
        lambda f: f.remove_event("parked/b", 3).remove_event("parked/b", 2),
    ),
    Forgery(5, "comes while it is processing", lambda f: f.remove_event("parked/b", 3)),
    Forgery(5, "claims it while it is parked", lambda f: f.remove_event("parked/b", 4)),
    Forgery(
        3,
        "attempt 7 comes in attempt 1",
        lambda f: f.change_properties("parked/c", 3, attempt_number=7),
    ),
    Forgery(
        4,
        "comes after it had completed",
        lambda f: f.add_event("parked/b", f.event("parked/b", 4)),
    ),
    Forgery(5, "add up to state 'parked'", lambda f: f.change_task("parked/c", state="pending")),
    Forgery(5, "its row says 'parked'", lambda f: f.change_task("late/a", state="parked")),
    Forgery(8, "ends at 1, and its outcome says 2", lambda f: f.drop_output("parked/a", 1, 2)),
]
REMOVALS = [
    Forgery(
        15,
        "it was removed, but there are still its row, rows of its tasks, events, output",
        lambda f: f.replace_fields(removed=frozenset([f.job("parked").id])),
    ),
    Forgery(
        15,
        "its row is gone, but there are still rows of its tasks, events",
        lambda f: f.replace_fields(
            jobs=tuple(job for job in f.snapshot.jobs if job != f.job("pipeline"))
        ),
    ),
]
ALL = [
    *(*LOST_WORK, *LEASES, *ENDS, *AGREEMENT, *DEPENDENCY_ORDER, *OUTPUT, *OWNERSHIP, *BUDGETS),
    *REMOVALS,
]


@pytest.mark.parametrize("forged", ALL, ids=lambda forged: f"{forged.invariant}: {forged.message}")
def test_a_forged_history_is_rejected_by_its_number(
    snapshots: SnapshotPair, forged: Forgery
) -> None:
    forger = forged.forge(Forger(snapshots.settled))

    violations = audit(forger.snapshot)

    fitting = [
        violation
        for violation in violations
        if violation.invariant == forged.invariant and forged.message in violation.text
    ]
    assert fitting, "\n".join(map(str, violations)) or "nothing was found"


def test_every_invariant_that_a_store_can_show_has_its_forgeries() -> None:
    assert {forged.invariant for forged in ALL} == {*range(1, 10), 11, 13, 15}
