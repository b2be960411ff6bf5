"""Every single damage to a history is found, or it is one of those that change nothing.

Not a sample: each record is dropped and doubled, each pair of events exchanged, each field changed
to values of its kind and of none.
"""

import pytest

from longshore.audit.audit import audit
from longshore.audit.vocabulary import job_id_of
from tests.audit.conftest import SnapshotPair
from tests.audit.damage import all_damages, only_job
from tests.audit.workload import JOBS
from tests.unit.services.harness import TENANT

# What is not always found, and why no law can, or need.
HARMLESS = {
    "change EventRecord.at_us": "clocks may be wrong: only the order of an entity's events counts",
    "change EventRecord.blobs": "naming a document twice; what the event says of it is compared",
    "change EventRecord.origin": "who emitted it; matters only where output is named",
    "change EventRecord.position": "a position in the order of commits, within one job",
    "change Job Resumed.tasks": "a name twice, or the list kept elsewhere",
    "change JobRecord.cancel_us": "when it was requested; one after the end changes nothing",
    "change JobRecord.finished_us": "clocks may be wrong: only whether there is an end counts",
    "change JobRecord.version": "counts commits, also those without events",
    "change OutputRecord.stream": "what was printed where is not the auditor's to know",
    "change Task Failed.error_category": "of a round that is over; its row has forgotten",
    "change Task Failed.retry_after_us": "matters only for a rate limit",
    "change Task Failed.source": "says who ended it, and counts the same",
    "change Task Heartbeat.effective_until_us": "how long a lease lasts is its worker's choice",
    "change Task Parked.due_at_us": "until when it was to rest; it went on sooner",
    "change Task Processing Failed.due_at_us": "how long the pause was is chance",
    "change Task Processing Failed.error_category": "of an attempt that another has followed",
    "change Task Processing Failed.retry_after_us": "matters only for a rate limit",
    "change Task Processing Started.effective_until_us": "as of a heartbeat",
    "change Task Processing Started.worker_id": "if it never renewed, no other event names it",
    "change Task Submitted For Review.output": "of work that a reviewer sent back",
    "change TaskRecord.blobs": "naming a document twice, or not, in the auditor's own list",
    "change TaskRecord.cancel_us": "a request that had no effect any more",
    "change TaskRecord.finished_us": "earlier than its event: so it is when a clock was set back",
    "change TaskRecord.max_attempts": "a limit that was not reached; it is stored once",
    "change TaskRecord.not_before_us": "a time that had passed when it was dispatched",
    "change TaskRecord.parents": "a name twice",
    "change TaskRecord.queue": "of a task without a message; it is stored once",
    "change TaskRecord.rate_limit_wait_us": "a limit that was not reached; it is stored once",
    "change TaskRecord.version": "counts commits, also those without events",
    "drop OutputRecord": "the last output of a lost attempt: its length is not recorded",
}


@pytest.mark.parametrize("request_id", [*JOBS, "running"])
def test_every_damage_in_one_place_is_found_or_harmless(
    memory_snapshots: SnapshotPair, request_id: str
) -> None:
    evidence = memory_snapshots.unsettled if request_id == "running" else memory_snapshots.settled
    whole = only_job(evidence, job_id_of(TENANT, request_id))
    assert audit(whole) == []

    missed = [
        f"{damage.what} at {damage.where}"
        for damage in all_damages(whole)
        if damage.snapshot != whole and not audit(damage.snapshot) and damage.what not in HARMLESS
    ]

    assert missed == []
