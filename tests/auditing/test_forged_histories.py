"""A history that was damaged in one place is rejected, by the number of the law that it breaks."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from longshore.testing.auditing.audit import audit
from longshore.testing.auditing.evidence import Intent, Lease
from tests.auditing.conftest import Histories
from tests.auditing.forging import Forger

HOUR_US = 3_600_000_000
LEASE = Lease("worker-9", 1, 0, 1, 0)


class Forged(NamedTuple):
    """What is done to the history at rest, and what must be found."""

    invariant: int
    words: str
    forge: Callable[[Forger], Forger]


LOST = [
    Forged(1, "task 'd' was accepted and is gone", lambda f: f.drop_task("pipeline/d")),
    Forged(1, "never due", lambda f: f.change_task("late/a", due_us=None)),
    Forged(1, "waits for nobody", lambda f: f.change_task("late/b", awaits=0)),
    Forged(1, "and not when", lambda f: f.change_task("pipeline/a", finished_us=None)),
    Forged(
        1,
        "processing and nobody holds it",
        lambda f: f.change_task("late/a", state="processing"),
    ),
    Forged(1, "still processing", lambda f: f.change_task("late/a", state="processing")),
    Forged(1, "due and nobody has taken it", lambda f: f.change_task("late/a", due_us=1)),
    Forged(
        1, "all of its parents completed", lambda f: f.change_task("silent/a", state="completed")
    ),
    Forged(
        1, "job was cancelled and it is in_review", lambda f: f.change_job("reviewed", cancel_us=1)
    ),
    Forged(1, "has not heard", lambda f: f.change_job("pipeline", completed=0b0111)),
    Forged(1, "has not told so", lambda f: f.change_job("pipeline", end_told_in=0)),
    Forged(
        1,
        "its resume has not been carried out",
        lambda f: f.change_job("failing", intents=(Intent("resume", 1, 2),)),
    ),
    Forged(
        1, "accepted for 'b' and has not begun", lambda f: f.say("failing", 3, tasks=("a", "b"))
    ),
    Forged(1, "and that is not there", lambda f: f.with_(blobs=frozenset())),
]
LEASES = [
    Forged(2, "claims it while", lambda f: f.without_event("pipeline/b", 3)),
    Forged(
        2,
        "is given out after fence",
        lambda f: f.say("pipeline/b", 4, fence=f.event("pipeline/b", 2).says["fence"]),
    ),
    Forged(
        2, "attempt 1 begins after attempt 1", lambda f: f.say("pipeline/b", 4, attempt_number=1)
    ),
    Forged(2, "ends before it begins", lambda f: f.say("pipeline/b", 4, effective_until_us=0)),
    Forged(2, "holds its lease, and it is", lambda f: f.change_task("pipeline/a", lease=LEASE)),
    Forged(2, "its lease has fence 1", lambda f: f.change_task("late/a", lease=LEASE, fence=7)),
    Forged(2, "of an epoch", lambda f: f.with_(epoch=0).change_task("pipeline/a", fence=1 << 40)),
    Forged(3, "renews the lease of", lambda f: f.say("pipeline/a", 3, worker_id="worker-9")),
    Forged(3, "that had run out", lambda f: f.say("pipeline/a", 4, elapsed_us=HOUR_US)),
    Forged(3, "attempt 1 comes in attempt 2", lambda f: f.say("pipeline/b", 5, attempt_number=1)),
    Forged(3, "attempt 1 comes in attempt 2", lambda f: f.say("pipeline/b", 6, attempt_number=1)),
    Forged(
        3,
        "of attempt 2 has attempt 1's result",
        lambda f: f.say(
            "pipeline/b",
            6,
            output=str(f.event("pipeline/b", 6).says["output"]).replace("result-2", "result-1"),
        ),
    ),
    Forged(3, "that nobody held", lambda f: f.without_event("pipeline/d", 2)),
    Forged(3, "passes over", lambda f: f.say("cancelled/a", 3, attempt_number=None)),
    Forged(3, "which never began", lambda f: f.add_output("pipeline/d", 2, 1)),
]
ENDS = [
    Forged(
        4,
        "comes after it had completed",
        lambda f: f.add_event("pipeline/a", f.event("pipeline/a", 4)),
    ),
    Forged(
        4,
        "comes after it had completed",
        lambda f: f.add_event("pipeline/b", f.event("pipeline/b", 4)),
    ),
    Forged(4, "comes after it had failed", lambda f: f.say("failing/a", 4, round=1)),
    Forged(4, "no resume of its job has begun it", lambda f: f.without_event("failing", 3)),
    Forged(4, "no resume of its job", lambda f: f.say("failing", 3, tasks=())),
    Forged(
        4,
        "no resume of its job",
        lambda f: f.exchange_positions(("failing", 3), ("failing/a", 4)),
    ),
    Forged(4, "before round 1 ended", lambda f: f.say("pipeline/b", 1, round=2)),
    Forged(4, "round 4 begins after round 1", lambda f: f.say("failing", 3, round=4)),
    Forged(
        4,
        "comes after Job Completed",
        lambda f: f.add_event("pipeline", f.event("failing", 2)),
    ),
    Forged(
        7,
        "Job Completed after Job Completed",
        lambda f: f.add_event("pipeline", f.event("pipeline", 2)),
    ),
    Forged(
        7,
        "Job Failure Detected is told twice in round 1",
        lambda f: f.add_event("silent", f.event("silent", 2)),
    ),
    Forged(7, "of round 7 comes in round 1", lambda f: f.say("silent", 2, round=7)),
    Forged(7, "which had not failed", lambda f: f.say("silent", 2, failed_key="c")),
    Forged(7, "tells of 3 tasks of 4", lambda f: f.say("pipeline", 2, total_tasks=3)),
    Forged(
        7,
        "before 'd' had completed",
        lambda f: f.exchange_positions(("pipeline", 2), ("pipeline/d", -1)),
    ),
    Forged(7, "as failed, and that is completed", lambda f: f.change_job("pipeline", failed=1)),
    Forged(7, "ended in different ways", lambda f: f.change_job("pipeline", failed=1)),
    Forged(7, "more tasks as ended", lambda f: f.change_job("pipeline", completed=0b11111)),
    Forged(7, "blocked differ in [3]", lambda f: f.change_job("silent", blocked=0)),
    Forged(7, "has no time of its end", lambda f: f.change_job("silent", finished_us=None)),
    Forged(7, "has a time of its end", lambda f: f.change_job("late", finished_us=1)),
    Forged(
        7,
        "a task failed in round 1, and it has not told so",
        lambda f: f.without_event("silent", 2).change_job("silent", failure_told_in=0),
    ),
]
AGREEMENT = [
    Forged(5, "event 2 is missing from its history", lambda f: f.drop_event("pipeline/a", 2)),
    Forged(5, "event 5 is missing from the end", lambda f: f.drop_event("pipeline/a", 5)),
    Forged(5, "event 1 is missing", lambda f: f.drop_event("pipeline", 1)),
    Forged(
        5,
        "there are two events 2",
        lambda f: f.with_(events=(*f.evidence.events, f.event("pipeline/a", 2))),
    ),
    Forged(5, "its row ends at 4", lambda f: f.change_task("pipeline/a", last_sequence=4)),
    Forged(
        5, "another time for its last event", lambda f: f.change_task("late/a", last_event_us=1)
    ),
    Forged(5, "is not later than event 1", lambda f: f.change_event("pipeline/a", 2, at_us=1)),
    Forged(
        5, "was committed before event 1", lambda f: f.change_event("pipeline/a", 2, position=0)
    ),
    Forged(5, "it has events and no row", lambda f: f.drop_task("pipeline/d")),
    Forged(
        5,
        "there is no row of this job",
        lambda f: f.with_(jobs=tuple(job for job in f.evidence.jobs if job != f.job("late"))),
    ),
    Forged(5, "version 3 is too low", lambda f: f.change_task("pipeline/a", version=3)),
    Forged(5, "began at another time", lambda f: f.say("pipeline/a", 2, started_at_us=HOUR_US)),
    Forged(5, "heartbeat 9 follows heartbeat 1", lambda f: f.say("pipeline/a", 4, number=9)),
    Forged(5, "told at another time", lambda f: f.say("pipeline/a", 4, elapsed_us=1_000)),
    Forged(5, "tells of 9 used attempts", lambda f: f.say("silent/b", 2, retry_count=9)),
    Forged(5, "revision 3 follows revision 0", lambda f: f.say("reviewed/a", 4, revision=3)),
    Forged(
        5, "is not of the work that was reviewed", lambda f: f.say("reviewed/a", -1, output="2")
    ),
    Forged(
        5,
        "between its approval and",
        lambda f: f.without_event("reviewed/a", -1).add_event(
            "reviewed/a", f.event("reviewed/a", 2)
        ),
    ),
    Forged(5, "comes while it is", lambda f: f.without_event("reviewed/a", 6)),
    Forged(5, "its graph cannot be read", lambda f: f.change_job("late", keys=None, parents=())),
    Forged(
        5,
        "adds tasks to another number of them",
        lambda f: f.add_event(
            "late",
            f.event("late", 1),
            type="Job Tasks Added",
            says={"job_id": f.job("late").id, "previous_total_tasks": 9, "total_tasks_now": 3},
        ),
    ),
    Forged(5, "event 2 is Job Created", lambda f: f.add_event("late", f.event("late", 1))),
    Forged(5, "its events add up to round 2", lambda f: f.change_job("failing", round=1)),
    Forged(5, "add up to number of tasks 4", lambda f: f.change_job("pipeline", total=5)),
    Forged(5, "it is found by", lambda f: f.with_(unlike=(("job-x", "it is found by state 'a'"),))),
    Forged(
        5,
        "event 1 is missing",
        lambda f: f.with_(
            events=tuple(
                event
                for event in f.evidence.events
                if not (event.entity == "QUEUE#default" and event.sequence == 1)
            )
        ),
    ),
]
ORDER = [
    Forged(
        6,
        "sends it on while it is in_review",
        lambda f: f.without_event("reviewed/c", 1).add_event(
            "reviewed/c", f.event("pipeline/a", 1)
        ),
    ),
    Forged(
        6,
        "came before 'a' had completed",
        lambda f: f.exchange_positions(("pipeline/a", 5), ("pipeline/b", 1)),
    ),
    Forged(
        6,
        "came before 'a' had completed",
        lambda f: f.exchange_positions(("pipeline/a", 5), ("pipeline/b", 2)),
    ),
    Forged(
        6,
        "a second time in round 1",
        lambda f: f.change_event(
            "pipeline/c", 3, type="Task Pending", says=f.event("pipeline/c", 1).says
        ),
    ),
    Forged(6, "claims it before it was sent on", lambda f: f.without_event("pipeline/d", 1)),
    Forged(6, "still awaits parents", lambda f: f.change_task("pipeline/d", awaits=0b110)),
    Forged(6, "that are not its parents", lambda f: f.change_task("late/b", awaits=0b101)),
    Forged(6, "waits no more for 'a'", lambda f: f.change_task("late/b", awaits=0b100)),
    Forged(6, "name different parents", lambda f: f.change_task("pipeline/d", parents=("b",))),
]
OUTPUT = [
    Forged(8, "sequence 2 of attempt 1 is missing", lambda f: f.drop_output("pipeline/a", 1, 2)),
    Forged(8, "sequence 3 of attempt 1 is there twice", lambda f: f.add_output("pipeline/b", 1, 3)),
    Forged(8, "ends at 2, and its outcome says 3", lambda f: f.drop_output("pipeline/a", 1, 3)),
    Forged(8, "ends at 4, and its outcome says 3", lambda f: f.add_output("pipeline/a", 1, 4)),
    Forged(8, "ends at 1, and its outcome says none", lambda f: f.add_output("pipeline/d", 1, 1)),
    Forged(8, "ends at none, and its outcome says 1", lambda f: f.drop_output("pipeline/b", 2, 1)),
    Forged(8, "is no marker", lambda f: f.change_output("pipeline/b", 1, 2, stream="stdout")),
    Forged(8, "it has output and no row", lambda f: f.drop_task("pipeline/b")),
    Forged(8, "no holder told it", lambda f: f.say("silent/a", 4, last_output=2)),
    Forged(8, "of no attempt", lambda f: f.say("silent/b", 2, last_output=2)),
]
BELONGING = [
    Forged(9, "it is not the job of request", lambda f: f.change_job("late", request_id="later")),
    Forged(9, "created by another request", lambda f: f.say("late", 1, request_id="later")),
    Forged(9, "there are 2 jobs", lambda f: f.with_(jobs=(*f.evidence.jobs, f.job("late")))),
    Forged(9, "it is not task 'x'", lambda f: f.change_task("pipeline/d", key="x")),
    Forged(9, "two tasks 0 in its job", lambda f: f.change_task("pipeline/d", number=0)),
    Forged(9, "number 2 of its job is another", lambda f: f.change_task("pipeline/d", number=2)),
    Forged(9, "its job has 4 tasks", lambda f: f.change_task("pipeline/d", number=4)),
    Forged(11, "9 attempts are used", lambda f: f.change_task("pipeline/a", attempts_used=9)),
    Forged(
        11,
        "begins with all 1 used up",
        lambda f: f.change_task("pipeline/b", max_attempts=1),
    ),
    Forged(11, "tries again with all", lambda f: f.change_task("pipeline/b", max_attempts=1)),
    Forged(11, "it was revised 6 times", lambda f: f.change_task("reviewed/a", revision=6)),
    Forged(11, "and 3 are allowed", lambda f: f.with_(task_limit=3)),
    Forged(11, "before it was due", lambda f: f.say("pipeline/b", 3, due_at_us=HOUR_US * 10**6)),
    Forged(11, "than was asked for", lambda f: f.say("late/c", 1, due_at_us=None)),
    Forged(13, "it is 'other''s", lambda f: f.change_task("pipeline/d", tenant="other")),
    Forged(13, "event 2 is 'other''s", lambda f: f.change_event("pipeline/d", 2, tenant="other")),
    Forged(13, "event 1 is 'other''s", lambda f: f.change_event("pipeline", 1, tenant="other")),
    Forged(13, "tells of somebody else", lambda f: f.say("pipeline/d", 2, job_id="job-x")),
    Forged(
        13,
        "which is another job's",
        lambda f: f.change_task("late/a", blobs=f.task("pipeline/a").blobs),
    ),
    Forged(13, "under the key", lambda f: f.change_message("late/a", key="job-x_a")),
    Forged(13, "is on queue 'mail'", lambda f: f.change_message("late/a", queue="mail")),
]
BUDGETS = [
    Forged(3, "that nobody held", lambda f: f.without_event("parked/c", 2)),
    Forged(
        5,
        "comes while it is pending",
        lambda f: f.without_event("parked/b", 3).without_event("parked/b", 2),
    ),
    Forged(5, "comes while it is processing", lambda f: f.without_event("parked/b", 3)),
    Forged(5, "claims it while it is parked", lambda f: f.without_event("parked/b", 4)),
    Forged(3, "attempt 7 comes in attempt 1", lambda f: f.say("parked/c", 3, attempt_number=7)),
    Forged(
        4,
        "comes after it had completed",
        lambda f: f.add_event("parked/b", f.event("parked/b", 4)),
    ),
    Forged(5, "add up to state 'parked'", lambda f: f.change_task("parked/c", state="pending")),
    Forged(5, "its row says 'parked'", lambda f: f.change_task("late/a", state="parked")),
    Forged(8, "ends at 1, and its outcome says 2", lambda f: f.drop_output("parked/a", 1, 2)),
]
ALL = [*LOST, *LEASES, *ENDS, *AGREEMENT, *ORDER, *OUTPUT, *BELONGING, *BUDGETS]


@pytest.mark.parametrize("forged", ALL, ids=lambda forged: f"{forged.invariant}: {forged.words}")
def test_a_forged_history_is_rejected_by_its_number(histories: Histories, forged: Forged) -> None:
    forger = forged.forge(Forger(histories.at_rest))

    found = audit(forger.evidence)

    fitting = [
        one for one in found if one.invariant == forged.invariant and forged.words in one.text
    ]
    assert fitting, "\n".join(map(str, found)) or "nothing was found"


def test_every_invariant_that_a_store_can_show_has_its_forgeries() -> None:
    assert {forged.invariant for forged in ALL} == {*range(1, 10), 11, 13}
