"""Faults that the tests of cancelling, resuming and adding must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Before, Condition, Drop, Replace, Value

_RESUMING = "unit/services/test_resume.py"
_CANCELLING = "unit/services/test_cancel.py"
_ADDING = "unit/services/test_add_tasks.py"
_INTENTS = "unit/services/test_sweeper_intents.py"

_fault = partial(Fault, part=Part.OPERATOR_COMMANDS)

OPERATOR_COMMAND_FAULTS = (
    _fault(
        name="a resume that is not in the history yet counts as lost",
        at="services.operator_commands:OperatorCommands._history",
        do=Condition("last_sequence", False),
        caught_by="unit/services/test_late_history.py::test_a_resume_that_was_made_is_never_denied",
    ),
    _fault(
        name="options that are equal and of another type are not checked",
        at="core.jobs.submission:_valid_options",
        do=Argument("lru_cache()", "typed", None),
        caught_by="unit/core/test_submission.py::"
        "test_an_option_is_checked_also_if_it_resembles_that_of_the_task_before",
    ),
    _fault(
        name="a failure that the job has not recorded is not resumed",
        at="services.operator_commands:OperatorCommands.resume",
        do=Drop("settle()"),
        caught_by=f"{_RESUMING}::test_a_failure_that_the_job_has_not_recorded_can_be_resumed",
    ),
    _fault(
        name="two who resume one task give it two rounds",
        at="services.operator_commands:OperatorCommands._plan",
        do=Condition("number", False),
        caught_by=f"{_RESUMING}::"
        "test_one_who_comes_between_the_job_and_its_tasks_leaves_them_to_the_first",
    ),
    _fault(
        name="a task behind another failure is resumed",
        at="services.operator_commands:OperatorCommands._job_command",
        do=Argument("ResumeJob()", "blocked", "NumberSet()"),
        caught_by=f"{_RESUMING}::test_a_task_behind_another_failed_task_stays_waiting",
    ),
    _fault(
        name="a resume whose answer was lost is made again",
        at="services.operator_commands:OperatorCommands._commit",
        do=Value("return _is_ours()", "False"),
        caught_by=f"{_RESUMING}::"
        "test_a_resume_with_a_lost_answer_succeeds_although_the_task_was_claimed_since",
    ),
    _fault(
        name="one who was slower takes the resume of another for its own",
        at="services.operator_commands:OperatorCommands._commit",
        do=Drop("maybe_committed"),
        caught_by=f"{_RESUMING}::test_two_who_resume_one_task_at_once_give_it_one_new_round",
    ),
    _fault(
        name="a resume that is under way is left to the sweeper for ever",
        at="services.operator_commands:OperatorCommands.resume",
        do=Drop("finish_resume()"),
        caught_by=f"{_RESUMING}::test_a_failed_task_runs_again_and_what_waited_behind_it_continues",
    ),
    _fault(
        name="a resume takes back a newer failure",
        at="services.operator_commands:OperatorCommands.finish_resume",
        do=Argument("Resume()", "round", "job.round + 1"),
        caught_by=f"{_RESUMING}::"
        "test_a_task_that_failed_again_before_the_resume_was_closed_is_not_taken_back",
    ),
    _fault(
        name="a resume is closed before its tasks are resumed",
        at="services.operator_commands:OperatorCommands.finish_resume",
        do=Before("Resume()", "await self.transitions.close_intent(job.id, intent)"),
        caught_by=f"{_RESUMING}::test_a_resume_that_dies_at_any_call_is_finished_or_never_was",
    ),
    _fault(
        name="a resume is counted by everybody who met it",
        at="services.operator_commands:OperatorCommands._finish",
        do=Value("return close_intent()", "$1 is not job"),
        caught_by=f"{_RESUMING}::test_two_who_finish_one_resume_count_it_once",
    ),
    _fault(
        name="a resume that is closed is closed again",
        at="core.jobs.job:_intent_done",
        do=Condition("intents", False),
        caught_by=f"{_RESUMING}::test_two_who_finish_one_resume_count_it_once",
    ),
    _fault(
        name="what runs is not asked to end",
        at="services.operator_commands:OperatorCommands._task_changes",
        do=Condition("isinstance()", "$0 and not item.row.lease"),
        caught_by=f"{_CANCELLING}::test_what_runs_is_asked_to_end_and_the_job_waits_for_it",
    ),
    _fault(
        name="a cancellation that was left half way stays so",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Before("finish_intent()", "if intent.kind == 'cancel':\n    continue"),
        caught_by=f"{_CANCELLING}::"
        "test_a_cancellation_that_was_left_half_way_is_finished_by_the_next",
    ),
    _fault(
        name="the job does not record a cancellation",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Drop("settle()"),
        caught_by=f"{_CANCELLING}::test_what_waits_is_cancelled_at_once",
    ),
    _fault(
        name="a cancellation that met a conflict is answered as done",
        at="services.operator_commands:OperatorCommands._request_cancel",
        do=Value("return None", "change.row"),
        caught_by=f"{_CANCELLING}::test_a_job_that_changes_all_the_time_is_cancelled_task_by_task",
    ),
    _fault(
        name="cancelling twice is refused",
        at="services.operator_commands:OperatorCommands._request_cancel",
        do=Condition("reason", "False or $2"),
        caught_by=f"{_CANCELLING}::test_cancelling_twice_is_the_same_as_once",
    ),
    _fault(
        name="a job that has ended is cancelled without a word",
        at="services.operator_commands:OperatorCommands._request_cancel",
        do=Replace("refusal_error()", "return job"),
        caught_by=f"{_CANCELLING}::test_a_job_that_has_ended_cannot_be_cancelled",
    ),
    _fault(
        name="a cancellation is closed before its tasks are",
        at="services.operator_commands:OperatorCommands.finish_cancel",
        do=Before("RequestCancel()", "await self.transitions.close_intent(job.id, intent)"),
        caught_by=f"{_INTENTS}::"
        "test_a_cancellation_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was",
    ),
    _fault(
        name="a cancellation is counted by everybody who met it",
        at="services.operator_commands:OperatorCommands._finish",
        do=Value("return close_intent()", "$1 is not job"),
        caught_by=f"{_INTENTS}::test_two_sweepers_that_finish_one_cancellation_count_it_once",
    ),
    _fault(
        name="a request adds its tasks again",
        at="services.submit:Producer.add_tasks",
        do=Condition("find_addition()", "$0 and existing is None"),
        caught_by=f"{_ADDING}::test_the_same_request_adds_the_same_tasks_once",
    ),
    _fault(
        name="what a request has added may be something else",
        at="services.submit:_previous_addition",
        do=Value("= canonical_hash()", "bool($1)"),
        caught_by=f"{_ADDING}::test_the_same_request_with_other_tasks_is_refused",
    ),
    _fault(
        name="an addition is never finished",
        at="services.submit:Producer._commit_addition",
        do=Argument("replace()", "intent", None),
        caught_by=f"{_ADDING}::"
        "test_an_addition_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was",
    ),
    _fault(
        name="a task behind a failure that is added counts as able to run",
        at="services.submit:Producer._commit_addition",
        do=Argument("AddTasks()", "blocked", None),
        caught_by=f"{_ADDING}::"
        "test_a_task_added_behind_a_failed_task_waits_and_runs_after_a_resume",
    ),
    _fault(
        name="later dependents of a task are unknown",
        at="services.submit:Producer._commit_addition",
        do=Argument("AddTasks()", "with_added_dependents", None),
        caught_by=f"{_ADDING}::test_a_task_behind_one_that_runs_starts_when_that_has_completed",
    ),
    _fault(
        name="an end during an addition is missed",
        at="services.submit:Producer._close_intent",
        do=Drop("notify_waiting()"),
        caught_by=f"{_ADDING}::"
        "test_a_parent_that_ends_while_tasks_are_added_behind_it_is_not_missed",
    ),
    _fault(
        name="tasks are added to another tenant's job",
        at="services.submit:Producer.add_tasks",
        do=Argument("get_job()", 0, "None"),
        caught_by=f"{_ADDING}::test_another_tenant_s_job_is_not_there",
    ),
    _fault(
        name="what has completed is awaited",
        at="services.submit:Producer.add_tasks",
        do=Argument("PlanTarget()", "completed", None),
        caught_by=f"{_ADDING}::test_a_task_behind_one_that_has_completed_gets_its_result",
    ),
    _fault(
        name="who was added behind a failure does not count as blocked",
        at="core.jobs.settle:_needs_graph",
        do=Condition("with_added_dependents", False),
        caught_by=f"{_ADDING}::test_a_failure_blocks_what_was_added_behind_it",
    ),
    _fault(
        name="a resume whose answer was lost is refused when others have gone on",
        at="services.operator_commands:OperatorCommands._is_ours",
        do=Value("return body", "False"),
        caught_by="unit/services/test_resume_lost_answers.py::"
        "test_a_resume_that_went_on_while_its_answer_was_lost_is_not_refused",
    ),
    _fault(
        name="a resume by another caller counts as one's own",
        at="services.operator_commands:OperatorCommands._is_ours",
        do=Value("return body", "True"),
        caught_by="unit/services/test_resume_lost_answers.py::"
        "test_a_resume_is_refused_if_another_caller_was_faster",
    ),
    _fault(
        name="a job is cancelled while tasks of it are resumed",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Before("finish_intent()", "if intent.kind == 'resume':\n    continue"),
        caught_by=f"{_INTENTS}::"
        "test_a_job_that_is_cancelled_while_it_is_resumed_is_cancelled_whole",
    ),
    _fault(
        name="a job is cancelled without the tasks that are being added",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Before("finish_intent()", "if intent.kind == 'add':\n    continue"),
        caught_by=f"{_ADDING}::"
        "test_a_job_that_is_cancelled_while_tasks_are_added_is_cancelled_with_them",
    ),
    _fault(
        name="a cancellation whose answer was lost is repeated after a resume",
        at="services.operator_commands:OperatorCommands._request_cancel",
        do=Condition("round", False),
        caught_by="unit/services/test_cancel_lost_answers.py::"
        "test_a_cancellation_whose_job_was_resumed_while_its_answer_was_lost_is_not_repeated",
    ),
    _fault(
        name="another caller's cancellation counts as the caller's own",
        at="services.operator_commands:OperatorCommands._has_cancelled",
        do=Value("return any()", "bool(history)"),
        caught_by="unit/services/test_cancel_lost_answers.py::"
        "test_a_cancellation_of_a_job_that_was_resumed_after_another_cancellation_is_carried_out",
    ),
    *(
        _fault(
            name=f"{operation} takes any reason",
            at=f"services.operator_commands:OperatorCommands.{operation}",
            do=Replace("_checked_reason()", "reason"),
            caught_by=f"unit/services/{test}",
        )
        for operation, test in (
            (
                "cancel_job",
                "test_cancel_tasks.py::test_a_reason_that_cannot_be_kept_changes_nothing",
            ),
            (
                "cancel_task",
                "test_cancel_tasks.py::test_a_reason_that_cannot_be_kept_changes_nothing",
            ),
            (
                "pause_queue",
                "test_pause.py::test_a_reason_that_cannot_be_kept_is_refused_and_changes_nothing",
            ),
        )
    ),
)
