"""Faults that the tests of dead letters, and of parked tasks told like them, must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_LETTERS = "unit/services/test_dead_letters.py"
_SETTLING = "unit/services/test_dead_letters_settling.py"
_POST_MORTEM = "unit/services/test_post_mortem.py"
_CORE = "unit/core/test_dead_letters.py"
_ALARM = "unit/core/test_alerting_piles.py"
_CHECK = "unit/services/test_health_dead_letters.py"
_FAILING = "unit/services/test_health_dead_letters_failing.py"
_PARKED = "unit/services/test_health_parked.py"
_PARKED_FAILING = "unit/services/test_health_parked_failing.py"
_SLACK = "adapters/alerts/test_slack_message.py"

_fault = partial(Fault, part=Part.DEAD_LETTERS)
_in_service = partial(_fault, file="services/dead_letters.py")
_in_core = partial(_fault, file="core/dead_letters.py")
_in_post_mortem = partial(_fault, file="services/post_mortem.py")
_in_alarm = partial(_fault, file="core/alerting.py")
_in_pile = partial(_fault, file="core/piles.py")
_in_piles = partial(_fault, file="services/piles.py")
_in_check = partial(_fault, file="services/health_check.py")

DEAD_LETTER_FAULTS = (
    _in_service(
        name="the message goes before its task has failed",
        old="            if isinstance(fate, Change):\n                try:\n",
        new="            if isinstance(fate, Change):\n"
        "                await self._backend.queue.drop_dead_letter(message.id)\n"
        "                try:\n",
        caught_by=f"{_SETTLING}::test_the_task_is_failed_before_its_message_is_removed",
    ),
    _in_service(
        name="what was true of a task is believed although it has changed",
        old="continue  # it has changed",
        new="pass  # it has changed",
        caught_by=f"{_SETTLING}::"
        "test_a_task_that_is_taken_at_the_last_moment_is_left_to_its_worker",
    ),
    _in_service(
        name="a message that stays is told of at every sweep",
        old="            self._told.add(message.id)\n",
        new="",
        caught_by=f"{_SETTLING}::test_a_message_that_stays_is_told_of_once",
    ),
    _in_service(
        name="many that stay hide the others",
        old="            if len(found) < limit:\n                return\n",
        new="            return\n",
        caught_by=f"{_SETTLING}::test_many_that_stay_do_not_hide_one_that_can_be_settled",
    ),
    _in_service(
        name="a message is forgotten before the event is written",
        old='        reason = f"discarded by {by}: {letter.reason}"\n',
        new='        reason = f"discarded by {by}: {letter.reason}"\n'
        "        await self._backend.queue.drop_dead_letter(letter.message.id)\n",
        caught_by=f"{_LETTERS}::test_nothing_is_forgotten_before_the_event_is_written",
    ),
    _in_service(
        name="a message that speaks for a task can be discarded",
        old="        if letter.row is not None:\n            reason",
        new="        if False:\n            reason",
        caught_by=f"{_LETTERS}::test_a_message_that_speaks_for_a_task_cannot_be_discarded",
    ),
    _in_service(
        name="dead letters of every tenant are replayed",
        old="if row is None or row.spec.tenant != tenant:\n                raise",
        new="if row is None:\n                raise",
        caught_by=f"{_LETTERS}::test_another_tenant_neither_sees_nor_replays_them",
    ),
    _in_service(
        name="dead messages are shown to every tenant",
        old="if row is not None and row.spec.tenant != tenant:",
        new="if False:",
        caught_by=f"{_LETTERS}::test_a_dead_message_is_shown_to_nobody_but_the_tenant_of_its_task",
    ),
    _in_service(
        name="a task that moved on is replayed",
        old="            if row.state is TaskState.FAILED:\n                by_job",
        new="            if row.state:\n                by_job",
        caught_by=f"{_LETTERS}::test_a_task_that_moved_on_is_told_and_left_as_it_is",
    ),
    _in_service(
        name="a replay by filter takes everything",
        old="letters = [letter async for letter in self.matching(tenant, wanted)]",
        new="letters = [letter async for letter in self.matching(tenant)]",
        caught_by=f"{_LETTERS}::test_a_replay_by_filter_takes_what_fits_and_leaves_messages",
    ),
    _in_service(
        name="what stands between two pages is lost",
        old="cursor_to(_LISTING, *_place(items[-1]))",
        new="cursor_to(_LISTING, *_place(newest[limit]))",
        caught_by=f"{_LETTERS}::test_pages_show_everything_once_while_more_is_added",
    ),
    _in_service(
        name="only the first failed tasks are listed",
        old="            cursor = page.cursor\n",
        new="            cursor = None\n",
        caught_by=f"{_LETTERS}::test_more_than_are_read_at_once_are_all_listed",
    ),
    _in_core(
        name="a message from before a replay ends the new round",
        old="row.rung_at > message.sent_at + margin",
        new="False",
        caught_by=f"{_SETTLING}::test_a_message_from_before_a_replay_does_not_end_the_new_round",
    ),
    _in_core(
        name="a task that is only a little late has another message",
        old="row.rung_at > message.sent_at + margin",
        new="row.rung_at > message.sent_at",
        caught_by=f"{_CORE}::TestFate::"
        "test_a_task_that_was_rung_for_since_has_another_message_to_speak_for_it",
    ),
    _in_core(
        name="a message of no task goes without a word",
        old='return Stays(f"there is no task {named!r}")',
        new="return Goes()",
        caught_by=f"{_SETTLING}::test_a_message_that_leads_nowhere_stays_listed_with_its_reason",
    ),
    _in_core(
        name="a cancelled task is a dead letter",
        old="    if row.state is not TaskState.FAILED:\n",
        new="    if row.state not in (TaskState.FAILED, TaskState.CANCELLED):\n",
        caught_by=f"{_CORE}::TestLetters::test_any_other_task_is_none",
    ),
    _in_core(
        name="one wish that is met is enough",
        old="and self.category in (None, letter.category)",
        new="or self.category in (None, letter.category)",
        caught_by=f"{_CORE}::TestFilter::test_every_wish_must_be_met",
    ),
    _in_core(
        name="letters from before are meant too",
        old="letter.at >= self.since",
        new="letter.at <= self.since",
        caught_by=f"{_CORE}::TestFilter::test_each_wish_chooses",
    ),
    _in_post_mortem(
        name="of a long history only the beginning is read",
        old="        seen = page[-1].sequence\n",
        new="        return\n",
        caught_by=f"{_POST_MORTEM}::test_a_long_history_is_read_to_its_end",
    ),
    _in_post_mortem(
        name="last lines are shown with their secrets",
        old="safe_excerpt(text, limit=_LINE_CHARACTERS)",
        new="text[:_LINE_CHARACTERS]",
        caught_by=f"{_POST_MORTEM}::"
        "test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked",
    ),
    _in_post_mortem(
        name="a line in two pieces is two lines",
        old='(begun.pop(entry.stream, b"") + entry.data)',
        new="entry.data",
        caught_by=f"{_POST_MORTEM}::"
        "test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked",
    ),
    _in_post_mortem(
        name="all of a great deal of output is read",
        old="max((row.last_output or 0) - _PIECES, 0)",
        new="0",
        caught_by=f"{_POST_MORTEM}::test_of_a_great_deal_of_output_only_the_end_is_read",
    ),
    _in_post_mortem(
        name="who ended it is that of the first round",
        old="for event in reversed(history):",
        new="for event in history:",
        caught_by=f"{_POST_MORTEM}::test_who_ended_it_is_that_of_the_last_round",
    ),
    _in_pile(
        name="dead letters are told at every check",
        old="    return PileNews.STILL if cooled(last.at, now, cool_down) else None\n",
        new="    return PileNews.STILL\n",
        caught_by=f"{_ALARM}::test_that_there_are_some_is_told_once_with_what_was_found",
    ),
    _in_pile(
        name="a dead letter that comes as another goes is not noticed",
        old="found.newest[0].place > last.newest or ",
        new="",
        caught_by=f"{_ALARM}::test_new_ones_are_told_at_once_and_once",
    ),
    _in_pile(
        name="a dead letter of a clock that is behind is not noticed",
        old=" or found.at_least > last.at_least",
        new="",
        caught_by=f"{_ALARM}::test_new_ones_are_told_at_once_and_once",
    ),
    _in_pile(
        name="dead letters are told again although new ones just were",
        old="newest=found.newest[0].place, at=at)",
        new="newest=found.newest[0].place, at=last.at if last else at)",
        caught_by=f"{_ALARM}::test_what_is_new_begins_another_cool_down",
    ),
    _in_pile(
        name="that none is left is told again and again",
        old="    if not found.newest:\n        return None\n",
        new="    if not found.newest:\n        return last\n",
        caught_by=f"{_ALARM}::test_that_none_is_left_is_told_once_and_then_all_begins_anew",
    ),
    _in_alarm(
        name="a file from before is damaged",
        old="document.get(name, {})",
        new="document.get(name)",
        caught_by=f"{_ALARM}::test_in_a_file_from_before_there_were_any_nothing_was_told_of_piles",
    ),
    _in_alarm(
        name="what was told of parked tasks counts as told of dead letters",
        old="told_pile_after(told.parked, notice.parked, notice.at)",
        new="told_pile_after(told.parked, notice.dead, notice.at)",
        caught_by=f"{_ALARM}::test_dead_letters_and_parked_tasks_are_told_each_for_itself",
    ),
    _in_piles(
        name="tasks that go on by themselves hide parked ones that never do",
        old="            limit *= 2\n",
        new="            break\n",
        caught_by=f"{_PARKED}::test_many_that_go_on_by_themselves_do_not_hide_those_that_never_do",
    ),
    _in_piles(
        name="people hear of the parked tasks of others",
        old="item is not None and (tenants is None or row.spec.tenant in tenants)",
        new="item is not None",
        caught_by=f"{_PARKED}::test_one_tenant_is_checked_and_nobody_hears_of_another",
    ),
    _in_piles(
        name="a parked task that cannot be read is said to go on",
        old="        if read.unread:\n            return",
        new="        if False:\n            return",
        caught_by=f"{_PARKED_FAILING}::test_a_parked_task_that_cannot_be_read_is_not_said_to_go_on",
    ),
    _in_piles(
        name="people of whom nobody knows whether they were told hear of nothing that is parked",
        old="        for tenant, own in items.items():\n",
        new="        await self.told_tenants()\n        for tenant, own in items.items():\n",
        caught_by=f"{_PARKED_FAILING}::"
        "test_while_it_is_not_known_of_whom_people_were_told_what_is_parked_is_told",
    ),
    _in_check(
        name="tasks that cannot be read hide dead letters",
        old="            await self._alerting.tell(self._findings([], lying))\n            raise\n",
        new="            raise\n",
        caught_by=f"{_FAILING}::"
        "test_tasks_that_cannot_be_read_keep_nobody_from_hearing_of_dead_letters",
    ),
    _in_piles(
        name="dead letters that cannot be read fail the check",
        old='            logger.warning(unavailable, extra={"error": str(error)})\n',
        new="            raise error\n",
        caught_by=f"{_FAILING}::test_dead_letters_that_cannot_be_read_fail_no_check_of_tasks",
    ),
    _in_piles(
        name="all that ever failed is read at every check",
        old="ledger.failed(tenant, limit=COUNTED_LIMIT + 1)",
        new="ledger.failed(tenant, limit=10**9)",
        caught_by=f"{_CHECK}::test_no_more_are_counted_than_the_limit_however_many_there_are",
    ),
    _in_piles(
        name="a message that leads to no task is told to every tenant",
        old="own = messages if tenant == self._tenant else []",
        new="own = messages",
        caught_by=f"{_CHECK}::"
        "test_a_message_that_leads_to_no_task_is_told_to_who_looks_after_the_queues",
    ),
    _in_piles(
        name="a message that will end its task is told beside that task",
        old="            if one.task_id not in known\n",
        new="",
        caught_by=f"{_CHECK}::"
        "test_a_message_whose_task_the_next_sweep_ends_is_told_as_that_task_and_only_once",
    ),
    _in_piles(
        name="of many tenants with dead letters only the first are told of",
        old="            after = page[-1]\n        return found\n",
        new="            break\n        return found\n",
        caught_by=f"{_CHECK}::test_of_very_many_tenants_none_is_left_out",
    ),
    _in_check(
        name="dead letters fill the history of checks",
        old="(reports if told or tenant in running else idle).append(report)",
        new="reports.append(report)",
        caught_by=f"{_CHECK}::"
        "test_a_tenant_with_nothing_but_dead_letters_gets_no_history_of_checks",
    ),
    _fault(
        file="services/alerting.py",
        name="what was told of dead letters alone is not kept",
        old="if one != NOTHING_TOLD}",
        new="if one.problems}",
        caught_by=f"{_FAILING}::test_the_next_process_knows_what_was_told",
    ),
    _fault(
        file="adapters/alerts/slack_message.py",
        name="dead letters have room that is not there",
        old="_ROOM - sum(1 + len(lines) for _, lines in piles)",
        new="_ROOM",
        caught_by=f"{_SLACK}::test_piles_leave_a_message_within_what_slack_takes",
    ),
)
