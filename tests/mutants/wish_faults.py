"""Faults that the tests of cancelling, resuming and adding must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_RESUMING = "unit/services/test_resuming.py"
_CANCELLING = "unit/services/test_cancelling.py"
_ADDING = "unit/services/test_adding.py"
_INTENTS = "unit/services/test_sweeper_intents.py"

_fault = partial(Fault, part=Part.WISHES)
_in_resuming = partial(_fault, file="services/resuming.py")
_in_adding = partial(_fault, file="services/adding.py")
_in_cancelling = partial(_fault, file="services/cancelling.py")

WISH_FAULTS = (
    _in_resuming(
        name="a failure that the job has not heard of is not resumed",
        old="        await self._dispatcher.settle(task_ids)\n",
        new="",
        caught_by=f"{_RESUMING}::test_a_failure_that_the_job_has_not_heard_of_can_be_resumed",
    ),
    _in_resuming(
        name="two who resume one task give it two rounds",
        old="elif row.spec.number not in job.failed | job.cancelled:",
        new="elif False:",
        caught_by=f"{_RESUMING}::"
        "test_one_who_comes_between_the_job_and_its_tasks_leaves_them_to_the_first",
    ),
    _in_resuming(
        name="what is behind another failure goes on",
        old="blocked=graph.behind((job.failed | job.cancelled) - numbers),",
        new="blocked=NumberSet(),",
        caught_by=f"{_RESUMING}::test_what_is_behind_another_failure_stays_behind_it",
    ),
    _in_resuming(
        name="a resume whose answer was lost is made again",
        old="return conflict.perhaps_ours and await self._was_ours(change)",
        new="return False",
        caught_by=f"{_RESUMING}::"
        "test_a_resume_whose_answer_was_lost_and_whose_task_was_taken_is_told_as_done",
    ),
    _in_resuming(
        name="one who was slower takes the resume of another for its own",
        old="return conflict.perhaps_ours and await self._was_ours(change)",
        new="return await self._was_ours(change)",
        caught_by=f"{_RESUMING}::test_two_who_resume_one_task_at_once_give_it_one_new_round",
    ),
    _in_resuming(
        name="a resume that is under way is left to the sweeper for ever",
        old="                await self.finish(plan.job.row, intent)\n",
        new="                pass\n",
        caught_by=f"{_RESUMING}::test_a_failed_task_runs_again_and_what_waited_behind_it_goes_on",
    ),
    _in_resuming(
        name="a resume takes back a newer failure",
        old="command = c.Resume(round=intent.round, by=intent.by, completed=job.completed)",
        new="command = c.Resume(round=job.round + 1, by=intent.by, completed=job.completed)",
        caught_by=f"{_RESUMING}::"
        "test_a_task_that_failed_again_before_the_resume_was_closed_is_not_taken_back",
    ),
    _in_resuming(
        name="a resume is closed before its tasks are resumed",
        old="        graph = await self._graph(job)\n        command = c.Resume(",
        new="        await self._transitions.close(job.id, intent)\n"
        "        graph = await self._graph(job)\n        command = c.Resume(",
        caught_by=f"{_RESUMING}::test_a_resume_that_dies_at_any_call_is_finished_or_never_was",
    ),
    _in_resuming(
        name="a resume is counted by everybody who met it",
        old="return await self._transitions.close(job.id, intent) is not None",
        new="return await self._transitions.close(job.id, intent) is not job",
        caught_by=f"{_RESUMING}::test_two_who_finish_one_resume_count_it_once",
    ),
    _fault(
        name="a resume that is closed is closed again",
        file="core/job.py",
        old="    if left == step.row.intents:\n",
        new="    if False:\n",
        caught_by=f"{_RESUMING}::test_two_who_finish_one_resume_count_it_once",
    ),
    _in_cancelling(
        name="what runs is not asked to end",
        old="if not isinstance(one, Refusal)]",
        new="if not isinstance(one, Refusal) and not one.row.lease]",
        caught_by=f"{_CANCELLING}::test_what_runs_is_asked_to_end_and_the_job_waits_for_it",
    ),
    _in_cancelling(
        name="a cancellation that was left half way stays so",
        old="            if intent.kind is IntentKind.CANCEL:\n",
        new="            if False:\n",
        caught_by=f"{_CANCELLING}::"
        "test_a_cancellation_that_was_left_half_way_is_finished_by_the_next",
    ),
    _in_cancelling(
        name="the job does not hear of what was cancelled",
        old="        await self._dispatcher.settle(await self._open_tasks(begun))\n",
        new="",
        caught_by=f"{_CANCELLING}::test_what_waits_is_cancelled_at_once",
    ),
    _in_cancelling(
        name="a cancellation that met a change is told as done",
        old="        except VersionConflict:\n            return None\n",
        new="        except VersionConflict:\n            return change.row\n",
        caught_by=f"{_CANCELLING}::test_a_job_that_changes_all_the_time_is_cancelled_task_by_task",
    ),
    _in_cancelling(
        name="cancelling twice is refused",
        old="change.reason is Reason.NOTHING_TO_DO",
        new="False",
        caught_by=f"{_CANCELLING}::test_cancelling_twice_is_the_same_as_once",
    ),
    _in_cancelling(
        name="a job that has ended is cancelled without a word",
        old="            raise refused(job_id, change)\n",
        new="            return job\n",
        caught_by=f"{_CANCELLING}::test_a_job_that_has_ended_cannot_be_cancelled",
    ),
    _in_cancelling(
        name="a cancellation is closed before its tasks are",
        old="        reason = job.cancel.reason if job.cancel else None\n",
        new="        reason = job.cancel.reason if job.cancel else None\n"
        "        await self._transitions.close(job.id, intent)\n",
        caught_by=f"{_INTENTS}::"
        "test_a_cancellation_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was",
    ),
    _in_cancelling(
        name="a cancellation is counted by everybody who met it",
        old="return await self._transitions.close(job.id, intent) is not None",
        new="return await self._transitions.close(job.id, intent) is not job",
        caught_by=f"{_INTENTS}::test_two_sweepers_that_finish_one_cancellation_count_it_once",
    ),
    _in_adding(
        name="a request adds its tasks again",
        old="if (known := graph.added_by(mark)) is not None:",
        new="if (known := graph.added_by(mark)) is not None and known is None:",
        caught_by=f"{_ADDING}::test_the_same_request_adds_the_same_tasks_once",
    ),
    _in_adding(
        name="what a request has added may be something else",
        old="same = canonical_hash(document) == known.body",
        new="same = bool(canonical_hash(document))",
        caught_by=f"{_ADDING}::test_the_same_request_with_other_tasks_is_refused",
    ),
    _in_adding(
        name="an addition that nobody finishes",
        old="command = replace(command, graph=graph, intent=intent)",
        new="command = replace(command, graph=graph)",
        caught_by=f"{_ADDING}::"
        "test_an_addition_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was",
    ),
    _in_adding(
        name="a task behind a failure that is added counts as able to run",
        old="blocked=planned.graph.behind(job.failed | job.cancelled) & wanted.numbers,",
        new="",
        caught_by=f"{_ADDING}::"
        "test_what_is_added_behind_a_failure_waits_and_goes_on_after_a_resume",
    ),
    _in_adding(
        name="nobody knows that a task got dependents later",
        old="            grown=wanted.grown,\n",
        new="",
        caught_by=f"{_ADDING}::test_a_task_behind_one_that_runs_starts_when_that_has_completed",
    ),
    _in_adding(
        name="an end during an addition is missed",
        old="            await self._dispatcher.send_on([",
        new="            ([",
        caught_by=f"{_ADDING}::"
        "test_a_parent_that_ends_while_tasks_are_added_behind_it_is_not_missed",
    ),
    _in_adding(
        name="tasks are added to another tenant's job",
        old="if job is None or job.spec.tenant != tenant:",
        new="if job is None:",
        caught_by=f"{_ADDING}::test_another_tenant_s_job_is_not_there",
    ),
    _in_adding(
        name="what has completed is awaited",
        old="            completed=job.completed,\n        )\n        planned",
        new="        )\n        planned",
        caught_by=f"{_ADDING}::test_a_task_behind_one_that_has_completed_gets_its_result",
    ),
    _fault(
        name="who was added behind a failure does not count as blocked",
        file="services/dispatcher.py",
        old="alone = row.spec.dependents is None and row.spec.number not in job.grown",
        new="alone = row.spec.dependents is None",
        caught_by=f"{_ADDING}::test_a_failure_blocks_what_was_added_behind_it",
    ),
    _in_resuming(
        name="a resume whose answer was lost is refused when others have gone on",
        old="return [event.body for event in history] == [told.body]",
        new="return False",
        caught_by="unit/services/test_resuming_unheard.py::"
        "test_a_resume_that_went_on_while_its_answer_was_lost_is_not_refused",
    ),
    _in_resuming(
        name="somebody else's resume is taken for one's own",
        old="return [event.body for event in history] == [told.body]",
        new="return True",
        caught_by="unit/services/test_resuming_unheard.py::"
        "test_a_resume_for_which_somebody_else_was_faster_is_refused",
    ),
    _fault(
        name="a job is cancelled while tasks of it are resumed",
        file="services/cancelling.py",
        old="if (finish := self._others.get(intent.kind)) is not None:",
        new='if intent.kind != "resume" and (finish := self._others.get(intent.kind)):',
        caught_by=f"{_INTENTS}::"
        "test_a_job_that_is_cancelled_while_it_is_resumed_is_cancelled_whole",
    ),
    _fault(
        name="a job is cancelled without the tasks that are being added",
        file="services/cancelling.py",
        old="if (finish := self._others.get(intent.kind)) is not None:",
        new='if intent.kind == "create" and (finish := self._others[intent.kind]):',
        caught_by=f"{_ADDING}::"
        "test_a_job_that_is_cancelled_while_tasks_are_added_is_cancelled_with_them",
    ),
)
