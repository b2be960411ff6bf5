"""Faults that the tests of reviewing, of cancelling one task and of explaining must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Operator, Replace, Value

_REVIEWING = "unit/services/test_review.py"
_TASKS = "unit/services/test_cancel_tasks.py"
_RULES = "unit/core/test_task_operator.py::TestReview"
_WHY = "unit/services/test_explain.py"
_SENTENCES = "unit/core/test_explain.py"
_JOBS = "unit/core/test_explain_jobs.py"
_CHAINS = "unit/core/test_dependency_chain.py"

_fault = partial(Fault, part=Part.OPERATOR_COMMANDS)
_explain = partial(Fault, part=Part.EXPLAIN)

REVIEW_FAULTS = (
    _fault(
        name="another tenant's task is reviewed",
        at="services.reads:get_task_of",
        do=Drop("not in tenant"),
        caught_by=f"{_REVIEWING}::test_another_tenant_s_task_is_not_there",
    ),
    _fault(
        name="what waits for an approval is left to the dispatcher",
        at="services.operator_commands:OperatorCommands.approve",
        do=Drop("settle()"),
        caught_by=f"{_REVIEWING}::test_a_task_that_waited_for_an_approval_continues_at_once",
    ),
    _fault(
        name="one who decides twice is refused",
        at="services.operator_commands:OperatorCommands._already_decided",
        do=Value("return in", "False"),
        caught_by=f"{_REVIEWING}::test_a_decision_is_about_the_result_that_was_seen",
    ),
    _fault(
        name="one who decides twice and names no attempt is refused",
        at="services.operator_commands:OperatorCommands._already_decided",
        do=Condition("attempt", False, nth=2),
        caught_by=f"{_REVIEWING}::test_a_revision_that_is_requested_twice_happens_once",
    ),
    _fault(
        name="a decision by another reviewer or with other feedback is answered as one's own",
        at="services.operator_commands:OperatorCommands._already_decided",
        do=Value("return replace()", "True"),
        caught_by=f"{_REVIEWING}::test_a_revision_that_is_requested_twice_happens_once",
    ),
    _fault(
        name="all decisions are about the first attempt",
        at="services.operator_commands:_decisions",
        do=Replace("attempt_number", "1"),
        caught_by=f"{_REVIEWING}::test_a_decision_is_about_the_result_that_was_seen",
    ),
    _fault(
        name="only the last decision counts as made",
        at="services.operator_commands:OperatorCommands._already_decided",
        do=Value("return in", "$1 in $2[-1:]"),
        caught_by=f"{_REVIEWING}::test_a_repeated_decision_succeeds_after_a_later_decision",
    ),
    _fault(
        name="a revision whose answer was lost is asked for again",
        at="services.operator_commands:OperatorCommands._decide",
        do=Argument("make_command()", "attempt", "None"),
        caught_by=f"{_REVIEWING}::"
        "test_a_revision_whose_answer_was_lost_and_that_has_been_done_is_not_asked_for_again",
    ),
    _fault(
        name="what cannot be decided has to wait for the history",
        at="services.operator_commands:OperatorCommands._already_decided",
        do=Condition("state", False),
        caught_by="unit/services/test_late_history.py::"
        "test_what_was_not_decided_yet_is_refused_without_the_history",
    ),
    _fault(
        name="a newer result is approved unseen",
        at="core.tasks.task:_not_reviewable",
        do=Condition("attempt", False),
        caught_by=f"{_RULES}::test_a_reviewer_decides_on_the_result_that_was_seen",
    ),
    _fault(
        name="blank feedback is taken",
        at="core.maximums:comment_problem",
        do=Replace("strip()", "text"),
        caught_by=f"{_RULES}::test_empty_or_too_long_feedback_is_refused",
    ),
    _fault(
        name="feedback may control a terminal",
        at="core.maximums:comment_problem",
        do=Replace("search()", "None"),
        caught_by="unit/core/test_comments.py::test_an_invalid_comment_has_a_problem",
    ),
    _fault(
        name="feedback that no store can keep is taken",
        at="core.maximums:comment_problem",
        do=Replace("encode", "$1.strip"),
        caught_by=f"{_REVIEWING}::test_feedback_that_cannot_be_taken_changes_nothing",
    ),
    _fault(
        name="one revision too many is granted",
        at="core.tasks.task:request_revision",
        do=Operator(">= revision", ">"),
        caught_by=f"{_RULES}::test_the_last_revision_is_granted_and_the_next_is_not",
    ),
    _fault(
        name="another tenant's task is cancelled",
        at="services.reads:get_task_of",
        do=Condition("tenant", "row is None"),
        caught_by=f"{_TASKS}::test_jobs_of_another_tenant_cannot_be_cancelled_or_resumed",
    ),
    _fault(
        name="a task is cancelled for a reason that no store can keep",
        at="services.operator_commands:OperatorCommands.cancel_task",
        do=Drop("= _checked_reason()"),
        caught_by=f"{_TASKS}::test_a_reason_that_cannot_be_kept_changes_nothing",
    ),
    _fault(
        name="a job is cancelled for a reason that no store can keep",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Replace("_checked_reason()", "$1"),
        caught_by=f"{_TASKS}::test_a_reason_that_cannot_be_kept_changes_nothing",
    ),
    _fault(
        name="another tenant's job is cancelled",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Argument("get_job()", 0, "None"),
        caught_by=f"{_TASKS}::test_jobs_of_another_tenant_cannot_be_cancelled_or_resumed",
    ),
    _fault(
        name="the job does not record a cancelled task",
        at="services.operator_commands:OperatorCommands.cancel_task",
        do=Drop("settle()"),
        caught_by=f"{_TASKS}::test_a_pending_task_ends_at_once_and_what_is_behind_it_is_blocked",
    ),
    _fault(
        name="a cancellation whose answer was lost takes back a resume",
        at="services.operator_commands:OperatorCommands.cancel_task",
        do=Argument("RequestCancel()", "round", None),
        caught_by=f"{_TASKS}::"
        "test_a_cancellation_whose_answer_was_lost_does_not_take_back_a_resume",
    ),
    _fault(
        name="one who cancels a task twice is refused",
        at="services.operator_commands:_in_progress",
        do=Drop("ours", nth=2),
        caught_by=f"{_TASKS}::test_a_second_cancellation_succeeds",
    ),
    _fault(
        name="a cancellation that is under way is refused",
        at="services.operator_commands:_in_progress",
        do=Drop("is not state"),
        caught_by=f"{_TASKS}::test_one_that_is_being_cancelled_is_left_to_it",
    ),
    _fault(
        name="an outcome before the cancellation is answered as cancelled",
        at="services.operator_commands:_in_progress",
        do=Value("return False", "True"),
        caught_by=f"{_TASKS}::test_an_outcome_that_was_committed_first_stays_and_is_in_the_answer",
    ),
    _fault(
        name="another tenant's job is resumed",
        at="services.operator_commands:OperatorCommands.resume",
        do=Argument("get_job()", 0, "None"),
        caught_by=f"{_TASKS}::test_jobs_of_another_tenant_cannot_be_cancelled_or_resumed",
    ),
    _fault(
        name="a task of another job is resumed with this one",
        at="services.operator_commands:OperatorCommands.resume",
        do=Condition("split_task_id()", "split_task_id(task_id)"),
        caught_by=f"{_TASKS}::test_a_task_of_another_job_is_not_resumed_with_this_one",
    ),
    _explain(
        name="another tenant's task is explained",
        at="services.explain:Explainer._explain_task",
        do=Drop("!= tenant"),
        caught_by=f"{_WHY}::test_another_tenant_s_tasks_and_jobs_are_not_there",
    ),
    _explain(
        name="another tenant's job is explained",
        at="services.explain:Explainer.why",
        do=Argument("get_job_of()", 1, "None"),
        caught_by=f"{_WHY}::test_another_tenant_s_tasks_and_jobs_are_not_there",
    ),
    _explain(
        name="the whole graph is read for a task without parents",
        at="services.explain:Explainer._explain_task",
        do=Replace("is not WAITING", "$1 is None"),
        caught_by=f"{_WHY}::test_a_task_that_is_not_waiting_is_explained_without_its_job_s_graph",
    ),
    _explain(
        name="failed tasks of a job are not explained",
        at="services.explain:Explainer._explain_job",
        do=Condition("unfinished", False),
        caught_by=f"{_WHY}::test_a_running_job_is_explained_by_its_failures_and_what_it_waits_for",
    ),
    _explain(
        name="omitted tasks of a job are not mentioned",
        at="services.explain:Explainer._explain_job",
        do=Drop("is not cursor"),
        caught_by=f"{_WHY}::test_a_wide_job_is_explained_by_a_few_tasks_and_that_there_are_more",
    ),
    _explain(
        name="a dead worker is not explained",
        at="services.explain:Explainer._snapshot",
        do=Argument("WhySnapshot()", "dead_workers", None),
        caught_by=f"{_WHY}::test_a_worker_that_falls_silent_and_one_whose_process_is_gone",
    ),
    _explain(
        name="the chain does not lead to the failure",
        at="core.explain:_rank",
        do=Drop("if failed"),
        caught_by=f"{_CHAINS}::"
        "test_a_cancelled_task_is_the_end_of_the_chain_though_it_waited_itself",
    ),
    _explain(
        name="the chain does not lead to what is behind the failure",
        at="core.explain:_rank",
        do=Drop("if blocked"),
        caught_by=f"{_CHAINS}::test_what_failed_is_followed_before_what_can_still_run",
    ),
    _explain(
        name="the chain continues behind its root",
        at="core.explain:_awaited",
        do=Drop("if ended"),
        caught_by=f"{_CHAINS}::"
        "test_a_cancelled_task_is_the_end_of_the_chain_though_it_waited_itself",
    ),
    _explain(
        name="a long chain is explained in full",
        at="core.explain:dependency_chain",
        do=Replace("max()", "0"),
        caught_by=f"{_WHY}::test_a_long_chain_is_explained_briefly_with_few_reads",
    ),
    _explain(
        name="a task behind a failure is explained as able to run",
        at="core.explain:_waiting_reason",
        do=Replace("get() _FAILED_STATES", "''"),
        caught_by=f"{_WHY}::test_behind_a_failure_the_failure_is_named_and_the_command_that_helps",
    ),
    _explain(
        name="a completed parent that is not recorded ends the explanation",
        at="core.explain:explain_task",
        do=Condition("COMPLETED", False),
        caught_by=f"{_WHY}::test_a_parent_whose_end_is_not_recorded_yet",
    ),
    _explain(
        name="a delayed task is explained as due",
        at="core.explain:_pending",
        do=Operator("> due_at", "is"),
        caught_by=f"{_WHY}::test_a_task_for_later_and_one_that_is_tried_again",
    ),
    _explain(
        name="a worker on another machine is explained as dead",
        at="core.explain:_silent_worker",
        do=Drop("local"),
        caught_by=f"{_SENTENCES}::TestProcessing::"
        "test_a_worker_elsewhere_may_have_the_name_of_one_that_is_gone_here",
    ),
    _explain(
        name="a slightly late renewal is explained as silence",
        at="core.explain:_silent_worker",
        do=Drop("_LATE"),
        caught_by=f"{_SENTENCES}::TestProcessing::"
        "test_a_renewal_that_is_a_little_late_is_no_silence",
    ),
    _explain(
        name="one reason is repeated for each task",
        at="core.explain:explain_job",
        do=Replace("fromkeys()", "list($1)"),
        caught_by=f"{_JOBS}::TestJobs::test_a_reason_that_tasks_share_is_given_once_and_last",
    ),
)
