"""Faults that the tests of reviewing, of cancelling one task and of explaining must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_REVIEWING = "unit/services/test_reviewing.py"
_TASKS = "unit/services/test_cancelling_tasks.py"
_RULES = "unit/core/test_task_wishes.py::TestReview"
_WHY = "unit/services/test_explaining.py"
_SENTENCES = "unit/core/test_explaining.py"
_JOBS = "unit/core/test_explaining_jobs.py"
_CHAINS = "unit/core/test_chain.py"

_fault = partial(Fault, part=Part.WISHES)
_in_reviewing = partial(_fault, file="services/reviewing.py")
_in_cancelling = partial(_fault, file="services/cancelling.py")
_in_resuming = partial(_fault, file="services/resuming.py")
_in_wishes = partial(_fault, file="core/task/wishes.py")
_in_remarks = partial(_fault, file="core/remarks.py")
_untold = partial(Fault, part=Part.EXPLAINING)
_in_service = partial(_untold, file="services/explaining.py")
_in_sentences = partial(_untold, file="core/explaining.py")
_in_chain = partial(_untold, file="core/chain.py")

REVIEW_FAULTS = (
    _in_reviewing(
        name="another tenant's task is reviewed",
        old="if row is None or row.spec.tenant != tenant:",
        new="if row is None:",
        caught_by=f"{_REVIEWING}::test_another_tenant_s_task_is_not_there",
    ),
    _in_reviewing(
        name="what waits for an approval is left to the dispatcher",
        old="        await self._dispatcher.settle([task_id])\n",
        new="",
        caught_by=f"{_REVIEWING}::test_what_waited_for_an_approval_goes_on_at_once",
    ),
    _in_reviewing(
        name="one who decides twice is refused",
        old="return wish in made",
        new="return False",
        caught_by=f"{_REVIEWING}::test_a_decision_is_about_the_result_that_was_seen",
    ),
    _in_reviewing(
        name="one who decides twice and names no attempt is refused",
        old="if seen is None and made:",
        new="if False:",
        caught_by=f"{_REVIEWING}::test_one_who_asks_for_a_revision_twice_gets_one",
    ),
    _in_reviewing(
        name="a decision by somebody else, or with other words, is told as one's own",
        old="return made[-1] == replace(wish, attempt=made[-1].attempt)",
        new="return True",
        caught_by=f"{_REVIEWING}::test_one_who_asks_for_a_revision_twice_gets_one",
    ),
    _in_reviewing(
        name="all decisions are about the first attempt",
        old="attempt = event.body.attempt_number",
        new="attempt = 1",
        caught_by=f"{_REVIEWING}::test_a_decision_is_about_the_result_that_was_seen",
    ),
    _in_reviewing(
        name="only the last decision counts as made",
        old="return wish in made",
        new="return wish in made[-1:]",
        caught_by=f"{_REVIEWING}::"
        "test_a_decision_whose_answer_was_lost_is_told_as_done_whatever_was_decided_since",
    ),
    _in_reviewing(
        name="a revision whose answer was lost is asked for again",
        old="about = row.attempt if seen is None else seen",
        new="about = attempt",
        caught_by=f"{_REVIEWING}::"
        "test_a_revision_whose_answer_was_lost_and_that_has_been_done_is_not_asked_for_again",
    ),
    _in_reviewing(
        name="what cannot be decided has to wait for the history",
        old="if row.state is TaskState.IN_REVIEW and row.attempt == wish.attempt:",
        new="if False:",
        caught_by="unit/services/test_late_history.py::"
        "test_what_was_not_decided_yet_is_refused_without_the_history",
    ),
    _in_wishes(
        name="a newer result is approved unseen",
        old="if command.attempt is not None and command.attempt != row.attempt:",
        new="if False:",
        caught_by=f"{_RULES}::test_a_reviewer_decides_on_the_result_that_was_seen",
    ),
    _in_remarks(
        name="blank feedback is taken",
        old="if not text.strip():",
        new="if not text:",
        caught_by=f"{_RULES}::test_feedback_that_says_nothing_or_too_much_is_refused",
    ),
    _in_remarks(
        name="feedback that no store can keep is taken",
        old="        text.encode()\n",
        new="        text.strip()\n",
        caught_by=f"{_REVIEWING}::test_feedback_that_cannot_be_taken_changes_nothing",
    ),
    _in_wishes(
        name="one revision too many is granted",
        old="if row.revision >= MAX_REVISIONS:",
        new="if row.revision > MAX_REVISIONS:",
        caught_by=f"{_RULES}::test_the_last_revision_is_granted_and_the_next_is_not",
    ),
    _in_cancelling(
        name="another tenant's task is cancelled",
        old="if row is None or row.spec.tenant != tenant:",
        new="if row is None:",
        caught_by=f"{_TASKS}::test_nobody_cancels_or_resumes_what_is_another_tenant_s",
    ),
    _in_cancelling(
        name="a task is cancelled for a reason that no store can keep",
        old="        reason = _said(reason)\n        row = ",
        new="        row = ",
        caught_by=f"{_TASKS}::test_a_reason_that_cannot_be_kept_changes_nothing",
    ),
    _in_cancelling(
        name="a job is cancelled for a reason that no store can keep",
        old="        reason = _said(reason)\n        if tenant",
        new="        if tenant",
        caught_by=f"{_TASKS}::test_a_reason_that_cannot_be_kept_changes_nothing",
    ),
    _in_cancelling(
        name="another tenant's job is cancelled",
        old="if tenant is not None and (await self._job(job_id)).spec.tenant != tenant:",
        new="if False:",
        caught_by=f"{_TASKS}::test_nobody_cancels_or_resumes_what_is_another_tenant_s",
    ),
    _in_cancelling(
        name="the job does not hear of a task that was cancelled",
        old="        await self._dispatcher.settle([task_id])\n",
        new="",
        caught_by=f"{_TASKS}::test_a_pending_task_ends_at_once_and_what_is_behind_it_is_blocked",
    ),
    _in_cancelling(
        name="a cancellation whose answer was lost takes back a resume",
        old="wish = RequestCancel(by=by, reason=reason, round=row.round)",
        new="wish = RequestCancel(by=by, reason=reason)",
        caught_by=f"{_TASKS}::"
        "test_a_cancellation_whose_answer_was_lost_does_not_take_back_a_resume",
    ),
    _in_cancelling(
        name="one who cancels a task twice is refused",
        old="return ours or row.state is not TaskState.CANCELLED",
        new="return row.state is not TaskState.CANCELLED",
        caught_by=f"{_TASKS}::test_one_who_cancels_twice_is_told_that_it_is_done",
    ),
    _in_cancelling(
        name="a cancellation that is under way is refused",
        old="return ours or row.state is not TaskState.CANCELLED",
        new="return ours",
        caught_by=f"{_TASKS}::test_one_that_is_being_cancelled_is_left_to_it",
    ),
    _in_cancelling(
        name="an outcome that was faster is told as cancelled",
        old="    if row.cancel is None:\n        return False\n",
        new="    if row.cancel is None:\n        return True\n",
        caught_by=f"{_TASKS}::test_an_outcome_that_was_faster_stands_and_the_answer_says_so",
    ),
    _in_resuming(
        name="another tenant's job is resumed",
        old="if tenant is not None and (await self._job(job_id)).spec.tenant != tenant:",
        new="if False:",
        caught_by=f"{_TASKS}::test_nobody_cancels_or_resumes_what_is_another_tenant_s",
    ),
    _in_resuming(
        name="a task of another job is resumed with this one",
        old="[task_id for task_id in task_ids if split_task_id(task_id)[0] == job_id]",
        new="[task_id for task_id in task_ids if split_task_id(task_id)]",
        caught_by=f"{_TASKS}::test_a_task_of_another_job_is_not_resumed_with_this_one",
    ),
    _in_service(
        name="another tenant's task is explained",
        old='is None or job.spec.tenant != tenant:\n            raise NotFound("task"',
        new='is None:\n            raise NotFound("task"',
        caught_by=f"{_WHY}::test_another_tenant_s_tasks_and_jobs_are_not_there",
    ),
    _in_service(
        name="another tenant's job is explained",
        old='is None or job.spec.tenant != tenant:\n            raise NotFound("job"',
        new='is None:\n            raise NotFound("job"',
        caught_by=f"{_WHY}::test_another_tenant_s_tasks_and_jobs_are_not_there",
    ),
    _in_service(
        name="the whole graph is read for a task that waits for nobody",
        old="if row is not None and row.state is not TaskState.WAITING:",
        new="if row is not None and row.state is None:",
        caught_by=f"{_WHY}::test_a_task_that_is_not_waiting_is_explained_without_its_job_s_graph",
    ),
    _in_service(
        name="what has failed of a job is not told",
        old="        if unfinished:\n",
        new="        if False:\n",
        caught_by=f"{_WHY}::test_a_job_under_way_tells_what_failed_and_what_it_waits_for",
    ),
    _in_service(
        name="that there is more of a job is not told",
        old="more = more or page.cursor is not None",
        new="more = more",
        caught_by=f"{_WHY}::test_of_a_wide_job_a_few_tasks_are_told_and_that_there_are_more",
    ),
    _in_service(
        name="a worker whose process is gone is not told",
        old="            gone=self._presence.absent(),\n",
        new="",
        caught_by=f"{_WHY}::test_a_worker_that_falls_silent_and_one_whose_process_is_gone",
    ),
    _in_chain(
        name="the chain does not lead to the failure",
        old="    if number in job.failed or number in job.cancelled:\n        return 0, number\n",
        new="",
        caught_by=f"{_CHAINS}::"
        "test_a_cancelled_task_is_the_end_of_the_chain_though_it_waited_itself",
    ),
    _in_chain(
        name="the chain does not lead to what is behind the failure",
        old="    if number in job.blocked:\n        return 1, number\n",
        new="",
        caught_by=f"{_CHAINS}::test_what_failed_is_followed_before_what_can_still_run",
    ),
    _in_chain(
        name="the chain goes on behind its root",
        old="    if number in job.ended:\n        return []\n",
        new="",
        caught_by=f"{_CHAINS}::"
        "test_a_cancelled_task_is_the_end_of_the_chain_though_it_waited_itself",
    ),
    _in_chain(
        name="a long chain is told whole",
        old="left_out = max(len(links) - 1 - LINKS_SHOWN, 0)",
        new="left_out = 0",
        caught_by=f"{_WHY}::test_a_long_chain_is_told_short_and_read_little",
    ),
    _in_sentences(
        name="what is behind a failure is told as if it could still run",
        old="if root is not None and (became := _ENDED_BADLY.get(root.state)):",
        new='if root is not None and (became := ""):',
        caught_by=f"{_WHY}::test_behind_a_failure_the_failure_is_named_and_the_command_that_helps",
    ),
    _in_sentences(
        name="a parent that has completed unheard is told as the end",
        old="if before and row is not None and row.state is TaskState.COMPLETED:",
        new="if False:",
        caught_by=f"{_WHY}::test_a_parent_whose_end_nobody_has_heard_of_yet",
    ),
    _in_sentences(
        name="a task that is put off is told as due",
        old="if row.due_at is not None and row.due_at > picture.now:",
        new="if row.due_at is not None and row.due_at is picture.now:",
        caught_by=f"{_WHY}::test_a_task_for_later_and_one_that_is_tried_again",
    ),
    _in_sentences(
        name="a worker elsewhere is told as gone",
        old="if lease.local and lease.worker_id in picture.gone:",
        new="if lease.worker_id in picture.gone:",
        caught_by=f"{_SENTENCES}::TestProcessing::"
        "test_a_worker_elsewhere_may_have_the_name_of_one_that_is_gone_here",
    ),
    _in_sentences(
        name="a renewal that is a little late is told as silence",
        old="> picture.lease.renew_every * _LATE:",
        new="> picture.lease.renew_every:",
        caught_by=f"{_SENTENCES}::TestProcessing::"
        "test_a_renewal_that_is_a_little_late_is_no_silence",
    ),
    _in_sentences(
        name="one reason is told once for each task",
        old="reasons += dict.fromkeys(reason for reason in told if reason.task_id is None)",
        new="reasons += [reason for reason in told if reason.task_id is None]",
        caught_by=f"{_JOBS}::TestJobs::"
        "test_what_several_tasks_wait_for_alike_is_said_once_and_last",
    ),
)
