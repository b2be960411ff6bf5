"""The tests of the services that run on every backend, run on AWS."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

from tests.unit.services import (
    test_add_tasks,
    test_budget_reservations,
    test_budgets,
    test_budgets_days,
    test_budgets_jobs,
    test_cancel,
    test_dead_letters_settling,
    test_dispatcher,
    test_dispatcher_disorder,
    test_health_rejected,
    test_job_usage,
    test_output_pump,
    test_resume,
    test_retention,
    test_review,
    test_submit,
    test_sweeper_leases,
    test_worker_attempts,
    test_worker_budgets,
    test_worker_budgets_failures,
    test_worker_leases,
    test_worker_messages,
    test_worker_running,
)
from tests.unit.services.harness import BACKENDS, WITH_QUEUE

MODULES = (
    test_budget_reservations,
    test_add_tasks,
    test_budgets,
    test_budgets_days,
    test_budgets_jobs,
    test_cancel,
    test_dead_letters_settling,
    test_dispatcher,
    test_dispatcher_disorder,
    test_health_rejected,
    test_job_usage,
    test_output_pump,
    test_submit,
    test_resume,
    test_retention,
    test_review,
    test_sweeper_leases,
    test_worker_attempts,
    test_worker_budgets,
    test_worker_budgets_failures,
    test_worker_leases,
    test_worker_messages,
    test_worker_running,
)


# Thousands of rows: what they show does not depend on the backend.
TOO_LARGE = (
    "test_a_wide_fan_out_comes_together_again",
    "test_the_work_for_a_completed_task_does_not_grow_with_its_job",
    "test_the_event_of_a_job_with_thousands_of_tasks_is_whole_for_its_reader",
    "test_many_that_stay_do_not_hide_one_that_can_be_settled",
)
# An installation for each call at which something dies: test_every_call_site does it in one.
TOO_MANY = ("test_a_resume_that_dies_at_any_call_is_finished_or_never_was",)
# SQS counts whole seconds: the second attempt begins up to one later.
TO_THE_MOMENT = ("test_a_passing_failure_is_tried_again_when_it_is_due",)
# SQS delivers an event that was not acknowledged again after a while.
AT_ONCE = ("test_an_event_that_was_not_acknowledged_is_delivered_again",)
# SQS keeps two messages of one task: the second is dropped besides, and that is counted.
TWO_MESSAGES = (
    "test_a_later_message_of_the_task_fails_it_too",
    "test_the_message_for_the_next_attempt_ends_the_task_too",
)
# Until midnight a worker asks SQS again and again, and each time is a request that is really made.
TOO_LONG = ("test_a_day_that_is_used_up_parks_tasks_until_the_sweeper_resumes_them_at_midnight",)
# A message that a stopping worker sends back to SQS gets another id.
SAME_ID = ("test_a_message_that_is_rejected_twice_is_reported_once",)
ELSEWHERE = TOO_LARGE + TOO_MANY + TO_THE_MOMENT + AT_ONCE + TWO_MESSAGES + TOO_LONG + SAME_ID


KINDS = (("kind", BACKENDS), ("kind", WITH_QUEUE))


def service_tests(module: ModuleType) -> Iterator[tuple[str, Callable[..., None]]]:
    """The tests of a module that run on every kind of backend with messages, to run on AWS."""
    for name, test in vars(module).items():
        marks = getattr(test, "pytestmark", [])
        others = [marker for marker in marks if marker.args not in KINDS]
        on_every_backend = name.startswith("test_") and len(others) < len(marks)
        if on_every_backend and name not in ELSEWHERE:
            yield f"{name}_on_aws", run_on_aws(test, others)


def run_on_aws(test: Callable[..., None], marks: list[Any]) -> Callable[..., None]:
    @wraps(test)
    def scenario(**arguments: Any) -> None:
        test(kind="aws", **arguments)

    signature = inspect.signature(test)
    parameters = [entry for entry in signature.parameters.values() if entry.name != "kind"]
    scenario.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    scenario.pytestmark = marks  # type: ignore[attr-defined]
    return scenario


for _module in MODULES:
    for _name, _test in service_tests(_module):
        globals()[_name] = _test
