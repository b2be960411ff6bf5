"""Rows are packed: small, and readable for as long as they are kept."""

import base64
import hashlib

import pytest

from longshore.adapters.aws import attributes
from longshore.adapters.aws.ledger.items import events_of, item_of, job_of, task_of
from longshore.errors import StoreTooNew
from longshore.ports.ledger import AnyChange
from longshore.testing.contracts.samples import new_job, new_task
from tests.aws.units import size_of, units_of

# A dictionary that rows were packed with is never changed. If this fails, add a new one instead.
STORED_WITH_DICTIONARY_1 = "51a69a7e956fe1f9"

TASK, JOB = new_task("a"), new_job("job-abc")


def test_a_row_and_its_events_are_read_as_they_were_written() -> None:
    task, job = item_of(TASK, 4), item_of(JOB, 4)
    key = {"bucket": "a", "id": TASK.row.id}
    job_key = {"bucket": "a", "id": JOB.row.id}

    assert (task_of(task), job_of(job)) == (TASK.row, JOB.row)
    assert events_of(key | task) == list(TASK.events)
    assert events_of(job_key | job) == list(JOB.events)


def test_a_functions_record_is_read_like_an_item() -> None:
    task = item_of(TASK, 4)

    in_base64 = task | {"row": base64.b64encode(task["row"]).decode()}

    assert task_of(in_base64) == TASK.row


@pytest.mark.parametrize("change", [TASK, JOB], ids=["task", "job"])
def test_an_ordinary_row_takes_far_less_than_the_kilobyte_that_one_unit_pays_for(
    change: AnyChange,
) -> None:
    item = item_of(change, 4)

    assert units_of(attributes.encode_item(item)) == 1
    assert size_of(attributes.encode_item(item)) < 600


def test_a_row_packed_with_the_first_dictionary_stays_readable() -> None:
    digest = hashlib.sha256(attributes._DICTIONARIES[1]).hexdigest()

    assert digest.startswith(STORED_WITH_DICTIONARY_1)


def test_a_row_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(StoreTooNew) as refused:
        attributes.decompress_text(b"\xfe" + attributes.compress_text("x")[1:])

    assert "Upgrade Longshore" in str(refused.value)
