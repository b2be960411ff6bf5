"""Faults that the worker's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_ATTEMPTS = "unit/services/test_worker_attempts.py"
_LEASES = "unit/services/test_worker_leases.py"
_DRAINING = "unit/services/test_worker_draining.py"
_MESSAGES = "unit/services/test_worker_messages.py"
_CANCELLATIONS = "unit/services/test_worker_cancellations.py"
_STARTS = "unit/services/test_worker_starts.py"
_STEPS = "unit/services/test_worker_steps.py"
_RUNNING = "unit/services/test_worker_running.py"
_OUTPUT = "unit/services/test_worker_output.py"

_fault = partial(Fault, part=Part.WORKER)
_in_attempt = partial(_fault, file="services/worker/attempt.py")
_in_worker = partial(_fault, file="services/worker/worker.py")
_in_outcomes = partial(_fault, file="services/worker/outcomes.py")
_in_room = partial(_fault, file="services/worker/room.py")
_in_orders = partial(_fault, file="services/worker/orders.py")

WORKER_FAULTS = (
    _in_attempt(
        name="a lease is trusted for ever",
        old="while (left := self._trusted_until - clock.elapsed()) > timedelta(0):",
        new="while left := timedelta(days=1):",
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _in_attempt(
        name="a lease is trusted up to its end",
        old="max(self._trusted_until, sent_at + self._tools.lease.trusted_for)",
        new="sent_at + self._tools.lease.lasts",
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _in_attempt(
        name="a renewal that succeeded is not believed",
        old="max(self._trusted_until, sent_at + self._tools.lease.trusted_for)",
        new="self._trusted_until",
        caught_by=f"{_LEASES}::test_what_runs_is_renewed_and_its_message_kept_hidden",
    ),
    _in_outcomes(
        name="one who no longer trusts its lease reports all the same",
        old="            case Stop.FENCED:\n                return None\n",
        new='            case Stop.FENCED:\n                return self.released("fenced")\n',
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _in_attempt(
        name="what is known of the row goes back",
        old="if row.version > self.row.version:",
        new="if True:",
        caught_by=f"{_LEASES}::test_what_is_known_of_the_row_never_goes_back",
    ),
    _in_attempt(
        name="a renewal does not tell of the cancellation",
        old="        if row.cancel is not None:\n            self.end(Stop.CANCELLED)\n\n"
        "    def _know",
        new="    def _know",
        caught_by=f"{_LEASES}::"
        "test_a_cancellation_is_noticed_by_the_next_renewal_if_no_nudge_comes",
    ),
    _in_attempt(
        name="a row that is cancelled from the start is run",
        old="        if self.row.cancel is not None:\n            self.end(Stop.CANCELLED)\n",
        new="",
        caught_by=f"{_CANCELLATIONS}::"
        "test_an_attempt_whose_row_says_from_the_start_that_it_is_cancelled_ends_so",
    ),
    _in_attempt(
        name="the outcome is told before the output is in the log",
        old="            await self._insistently(self._pump.settle)\n",
        new="            pass\n",
        caught_by=f"{_OUTPUT}::"
        "test_a_log_that_is_down_for_a_while_holds_up_the_outcome_and_does_not_cost_it",
    ),
    _fault(
        name="an outage costs finished work",
        file="services/worker/patience.py",
        old="    while clock.elapsed() < patient_until:\n",
        new="    while False:\n",
        caught_by=f"{_ATTEMPTS}::test_finished_work_survives_an_outage_of_the_store",
    ),
    _in_attempt(
        name="a child that cannot be noted down lives on",
        old="                await child.stop(grace=timedelta(0))\n                self._may_live",
        new="                self._may_live",
        caught_by=f"{_ATTEMPTS}::test_a_child_that_cannot_be_noted_down_is_not_left_alive",
    ),
    _in_attempt(
        name="a step is acknowledged before it is kept",
        old='        document = {"step": name',
        new='        await child.step_kept(name)\n        document = {"step": name',
        caught_by=f"{_STEPS}::test_a_step_is_not_acknowledged_before_it_is_kept",
    ),
    _in_attempt(
        name="a step forgets those before it",
        old='"previous": self.row.checkpoint}',
        new='"previous": None}',
        caught_by=f"{_STEPS}::test_a_second_attempt_gets_the_steps_that_were_finished",
    ),
    _in_attempt(
        name="no child to be had costs an attempt",
        old="            return await self._not_started(error)\n",
        new="            return self._outcomes.failed_by(ErrorCategory.NETWORK, error)\n",
        caught_by=f"{_STARTS}::"
        "test_a_task_that_no_child_could_be_started_for_is_given_back_and_costs_no_attempt",
    ),
    _in_attempt(
        name="a task that no child can be had for comes round and round",
        old="pause = pause_before_release(self.row)",
        new="pause = timedelta(0)",
        caught_by=f"{_STARTS}::test_the_pause_before_it_is_given_back_doubles_up_to_a_limit",
    ),
    _in_room(
        name="a released attempt counts for the pause that counted already",
        old="uncounted = max(row.attempt - 1 - row.attempts_used, 0)",
        new="uncounted = row.attempt - 1",
        caught_by=f"{_STARTS}::test_what_counted_before_does_not_make_the_pause_longer",
    ),
    _in_worker(
        name="the message goes before the outcome is there",
        old="        await self._run(attempt, message, nudged=self._nudges != nudges)\n",
        new="        await self._backend.queue.delete([message.receipt])\n"
        "        await self._run(attempt, message, nudged=self._nudges != nudges)\n",
        caught_by=f"{_MESSAGES}::test_the_outcome_is_committed_before_the_message_is_deleted",
    ),
    _in_worker(
        name="more messages are taken than there are slots",
        old="free = self._policy.concurrency - len(self._handling)",
        new="free = self._policy.concurrency",
        caught_by=f"{_MESSAGES}::test_no_more_messages_are_taken_than_there_are_free_slots",
    ),
    _in_worker(
        name="a free slot waits for the others",
        old="        self._handling.discard(handling)\n        self._slot_freed.set()\n",
        new="        self._handling.discard(handling)\n"
        "        if not self._handling:\n            self._slot_freed.set()\n",
        caught_by=f"{_MESSAGES}::test_a_slot_is_filled_again_as_soon_as_it_is_free",
    ),
    _in_worker(
        name="a broken renewal ends the renewing",
        old='                logger.exception("renewal.broken")\n',
        new="                raise\n",
        caught_by=f"{_LEASES}::test_a_bug_in_a_renewal_does_not_end_the_renewing",
    ),
    _in_worker(
        name="a failed renewal waits for its next turn",
        old="pause = self._tools.lease.renew_every if kept else",
        new="pause = self._tools.lease.renew_every if True else",
        caught_by=f"{_LEASES}::test_a_short_outage_costs_nothing",
    ),
    _in_worker(
        name="a claim is trusted from when its answer came",
        old="attempt = Attempt(self._tools, claimed, sent_at)",
        new="attempt = Attempt(self._tools, claimed, self._backend.clock.elapsed())",
        caught_by=f"{_LEASES}::"
        "test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes",
    ),
    _in_attempt(
        name="a renewal is trusted from when its answer came",
        old="self.renewed(row, sent_at)",
        new="self.renewed(row, self._tools.backend.clock.elapsed())",
        caught_by=f"{_LEASES}::"
        "test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes",
    ),
    _in_worker(
        name="one who lost its lease takes the message away",
        old="            return False  # fenced off",
        new="            pass  # fenced off",
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_lost_its_lease_leaves_the_message_to_whoever_is_next",
    ),
    _in_worker(
        name="one who could not renew takes the message away",
        old="if not attempt.row.state.terminal and attempt.row.lease is not None:",
        new="if False:",
        caught_by=f"{_LEASES}::"
        "test_a_task_whose_worker_could_not_renew_comes_to_another_by_its_message",
    ),
    _in_worker(
        name="the message of what runs is seen again",
        old="            await self._backend.queue.extend(receipts,",
        new="            dict(receipts=receipts,",
        caught_by=f"{_LEASES}::test_what_runs_is_renewed_and_its_message_kept_hidden",
    ),
    _in_worker(
        name="leases are not kept while a worker drains",
        old="            await self._drain()\n",
        new="            keeping[0].cancel()\n            await self._drain()\n",
        caught_by=f"{_DRAINING}::test_leases_are_kept_while_a_worker_drains",
    ),
    _in_worker(
        name="what outlasts the grace is waited for",
        old="            self.end_all()\n",
        new="            pass\n",
        caught_by=f"{_DRAINING}::"
        "test_what_outlasts_the_grace_is_released_at_once_and_costs_no_attempt",
    ),
    _in_worker(
        name="what is being claimed at the end is run to its end",
        old="        if self._giving_back:\n            attempt.end(Stop.DRAINED)\n",
        new="",
        caught_by=f"{_DRAINING}::"
        "test_what_is_being_claimed_when_everything_is_given_back_is_given_back_too",
    ),
    _in_worker(
        name="a stopping worker claims all the same",
        old="if row is None or self._stopping.is_set():",
        new="if row is None:",
        caught_by=f"{_DRAINING}::test_a_stopping_worker_claims_nothing_any_more",
    ),
    _in_worker(
        name="a nudge that comes with the claim is missed",
        old="nudged=self._nudges != nudges",
        new="nudged=False",
        caught_by=f"{_CANCELLATIONS}::test_a_cancellation_that_comes_with_the_claim_is_not_missed",
    ),
    _in_worker(
        name="a message of no task is dropped without a word",
        old="        await self._backend.events.append(\n",
        new="        dict(\n",
        caught_by=f"{_MESSAGES}::test_a_message_that_names_no_task_is_recorded_and_removed",
    ),
    _in_worker(
        name="children outlive a worker that is cancelled",
        old="            ending = [*keeping, *self._handling]\n",
        new="            ending = keeping\n",
        caught_by=f"{_ATTEMPTS}::test_a_worker_that_is_cancelled_kills_its_children",
    ),
    _in_outcomes(
        name="the memory of one that died is not told",
        old="failure = replace(failure, peak_rss_bytes=ending.peak_rss_bytes)",
        new="pass",
        caught_by="unit/services/test_worker_telling.py::"
        "test_how_much_memory_it_had_is_told_of_a_child_that_died",
    ),
    _in_outcomes(
        name="what a given back attempt has used is forgotten",
        old="reason=error_text(reason),\n            usage=self._told.usage,",
        new="reason=error_text(reason),",
        caught_by="unit/services/test_worker_telling.py::"
        "test_what_a_given_back_attempt_has_used_is_not_forgotten",
    ),
    _in_orders(
        name="of the steps only the last is given",
        old='        key = kept["previous"]\n',
        new="        key = None\n",
        caught_by=f"{_STEPS}::test_a_second_attempt_gets_the_steps_that_were_finished",
    ),
    _in_orders(
        name="a task runs by the newest version of its definition",
        old="spec.tenant, spec.definition, version=spec.definition_version",
        new="spec.tenant, spec.definition",
        caught_by="unit/services/test_worker_orders.py::"
        "test_a_task_runs_by_the_version_of_its_definition_that_was_there_when_it_was_submitted",
    ),
)
