"""Faults in the rules for definitions, attempts and failures, and in their explanations."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_ATTEMPTS = "unit/core/test_task_attempts.py::TestAttemptFailed"
_CLASSES = "unit/core/test_error_classification.py"
_EXPLAIN = "unit/core/test_explain.py::TestAfterTheRun"
_FAILURES = "core.tasks.failures"

_fault = partial(Fault, part=Part.RULES)

RULE_FAULTS = (
    _fault(
        name="an input sets every option of its definition",
        at="core.definitions.definition:merge_input",
        do=Value("= is_free", "True"),
        caught_by="unit/core/test_overrides.py::"
        "test_an_input_sets_only_what_is_overridable_and_arguments_that_are_free",
    ),
    _fault(
        name="an input replaces an argument that the definition sets",
        at="core.definitions.definition:merge_input",
        do=Drop("not in options"),
        caught_by="unit/core/test_overrides.py::"
        "test_an_input_sets_only_what_is_overridable_and_arguments_that_are_free",
    ),
    _fault(
        name="the hosts of repositories are not limited",
        at="core.agents.repositories:transport_of",
        do=Condition("hosts", False),
        caught_by="unit/core/agents/test_repositories.py::"
        "test_only_repositories_of_the_allowed_hosts_are_accepted",
    ),
    _fault(
        name="a reason may control the terminal",
        at="core.maximums:comment_problem",
        do=Condition("search()", "(match := None)"),
        caught_by="unit/core/test_comments.py::test_an_invalid_comment_has_a_problem",
    ),
    _fault(
        name="a rate limit never uses up an attempt",
        at=f"{_FAILURES}:Failure.uses_attempt",
        do=Drop("is retry_after"),
        caught_by=f"{_ATTEMPTS}::test_a_rate_limit_without_a_wait_uses_up_an_attempt",
    ),
    _fault(
        name="the waits for rate limits are not limited in sum",
        at="core.tasks.task:_end_attempt",
        do=Condition("longest", False),
        caught_by=f"{_ATTEMPTS}::test_the_waits_for_rate_limits_are_limited_in_sum",
    ),
    _fault(
        name="a rate limit without a time to wait counts as no wait",
        at="core.tasks.task:_end_attempt",
        do=Replace("max()", "pause"),
        caught_by=f"{_ATTEMPTS}::test_rate_limits_that_name_no_time_to_wait_are_limited_in_number",
    ),
    _fault(
        name="a task that is run in a test is retried for ever",
        at="core.tasks.task:_end_attempt",
        do=(
            Condition("longest", False),
            Value("= uses_attempt", "failure.category is not ErrorCategory.RATE_LIMIT"),
        ),
        caught_by="unit/test_testing_job_run.py::test_a_task_that_is_always_rate_limited_ends",
    ),
    _fault(
        name="errors that are named by another language are unknown",
        at=f"{_FAILURES}:NAMES",
        do=(Text(" RangeError ReferenceError", ""), Text("AbortError ", "")),
        caught_by=f"{_CLASSES}::test_the_class_name_of_a_known_library_decides",
    ),
    _fault(
        name="the code of a timeout or a missing module is unknown",
        at=f"{_FAILURES}:NAMES",
        do=(Text("AbortError TIMEOUT", "AbortError"), Text("MODULE_NOT_FOUND ", "")),
        caught_by=f"{_CLASSES}::test_a_code_decides",
    ),
    _fault(
        name="a missing variable is named without the error",
        at=f"{_FAILURES}:message_of",
        do=Condition("KeyError", False),
        caught_by="unit/core/test_failures.py::test_a_missing_key_is_named_as_such",
    ),
    _fault(
        name="a failed task does not say why it is not retried",
        at="core.explain:_idle_reason",
        do=Replace("_not_retried()", "''"),
        caught_by=f"{_EXPLAIN}::test_a_failed_task_says_what_would_have_it_retried",
    ),
    _fault(
        name="the app of a job is not read",
        at="core.jobs.submission:read_job",
        do=Argument("JobRequest()", "app", "None"),
        caught_by="unit/core/test_submission.py::test_a_job_may_name_its_app",
    ),
    _fault(
        name="a key of Longshore is masked by chance only",
        at="core.text.sanitise",
        do=Text("lsk_", "xyz_"),
        caught_by="unit/core/test_sanitise.py::test_a_known_shape_is_masked_at_any_position",
    ),
    _fault(
        name="a step of an agent ends after 15 minutes",
        at="core.agents.plan:MAX_TIMEOUT",
        do=Value("=", "timedelta(minutes=15)"),
        caught_by="unit/core/agents/test_plan.py::test_each_problem_has_its_path",
    ),
    _fault(
        name="a submit does not check what an input may set",
        at="core.jobs.submission:override_problems",
        do=Condition("isinstance()", True),
        caught_by="interfaces/test_application.py::"
        "test_what_a_definition_does_not_let_an_input_set_is_refused_with_every_problem",
    ),
    _fault(
        name="no words name a request that is invalid",
        at="core.tasks.failures",
        do=Text("request(?: ?id)?", "request"),
        caught_by="unit/core/test_error_classification_causes.py::"
        "test_words_count_last_and_as_whole_words_only",
    ),
    _fault(
        name="the field that retries an exit code is not named",
        at="core.explain:_not_retried",
        do=Text("retryableExitCodes", "x"),
        caught_by=f"{_EXPLAIN}::test_a_failed_task_with_an_exit_code_says_how_to_retry_it",
    ),
)
