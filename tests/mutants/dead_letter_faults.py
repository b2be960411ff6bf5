"""Faults that the tests of dead letters and parked tasks must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Before, Condition, Drop, Operator, Replace, Value

_LETTERS = "unit/services/test_dead_letters.py"
_SETTLING = "unit/services/test_dead_letters_settling.py"
_POST_MORTEM = "unit/services/test_post_mortem.py"
_CORE = "unit/core/test_dead_letters.py"
_ALERTS = "unit/core/test_alerts_backlogs.py"
_CHECK = "unit/services/test_health_dead_letters.py"
_FAILING = "unit/services/test_health_dead_letters_failing.py"
_PARKED = "unit/services/test_health_parked.py"
_PARKED_FAILING = "unit/services/test_health_parked_failing.py"
_REJECTED = "unit/services/test_health_rejected.py"
_SLACK = "adapters/alerts/test_slack_message.py"

_fault = partial(Fault, part=Part.DEAD_LETTERS)

DEAD_LETTER_FAULTS = (
    _fault(
        name="the message goes before its task has failed",
        at="services.dead_letters:DeadLetters._decide",
        do=Before("try", "await self.backend.queue.delete_dead_letter(message.id)"),
        caught_by=f"{_SETTLING}::test_the_task_is_failed_before_its_message_is_removed",
    ),
    _fault(
        name="what was true of a task is believed although it has changed",
        at="services.dead_letters:DeadLetters._decide",
        do=Drop("continue"),
        caught_by=f"{_SETTLING}::"
        "test_a_task_that_is_taken_at_the_last_moment_is_left_to_its_worker",
    ),
    _fault(
        name="a message that stays is reported at every sweep",
        at="services.dead_letters:DeadLetters._log_unresolved",
        do=Drop("add()"),
        caught_by=f"{_SETTLING}::test_a_message_that_stays_is_logged_once",
    ),
    _fault(
        name="many that stay hide the others",
        at="services.dead_letters:DeadLetters._messages",
        do=Replace("list_all()", "self.backend.queue.dead_letters(queue, limit=AT_ONCE)"),
        caught_by=f"{_SETTLING}::test_many_that_stay_do_not_hide_one_that_can_be_settled",
    ),
    _fault(
        name="a message is forgotten before the event is written",
        at="services.dead_letters:DeadLetters.discard",
        do=Before("_reject()", "await self.backend.queue.delete_dead_letter(letter.message.id)"),
        caught_by=f"{_LETTERS}::test_nothing_is_forgotten_before_the_event_is_written",
    ),
    _fault(
        name="a message that speaks for a task can be discarded",
        at="services.dead_letters:DeadLetters.discard",
        do=Condition("row", False),
        caught_by=f"{_LETTERS}::test_a_message_that_speaks_for_a_task_cannot_be_discarded",
    ),
    _fault(
        name="dead letters of every tenant are replayed",
        at="services.dead_letters:DeadLetters.replay",
        do=Drop("!= tenant"),
        caught_by=f"{_LETTERS}::test_another_tenant_neither_sees_nor_replays_them",
    ),
    _fault(
        name="dead messages are shown to every tenant",
        at="services.dead_letters:DeadLetters._letter_of",
        do=Condition("tenant", False),
        caught_by=f"{_LETTERS}::test_a_dead_message_is_visible_only_to_the_tenant_of_its_task",
    ),
    _fault(
        name="a task that moved on is replayed",
        at="services.dead_letters:DeadLetters.replay",
        do=Condition("state", "$1"),
        caught_by=f"{_LETTERS}::test_a_task_that_is_no_longer_failed_is_reported_and_not_replayed",
    ),
    _fault(
        name="a replay by filter takes everything",
        at="services.dead_letters:DeadLetters.replay",
        do=Argument("iter_matching()", 1, None),
        caught_by=f"{_LETTERS}::test_a_replay_by_filter_takes_what_fits_and_leaves_messages",
    ),
    _fault(
        name="an item between two pages is lost",
        at="services.dead_letters:DeadLetters.list_page",
        do=Argument("_sort_key() []", 0, "newest[limit]"),
        caught_by=f"{_LETTERS}::test_pages_show_everything_once_while_more_is_added",
    ),
    _fault(
        name="only the first failed tasks are listed",
        at="services.reads:iter_tasks",
        do=Replace("cursor page", "None"),
        caught_by=f"{_LETTERS}::test_more_than_are_read_at_once_are_all_listed",
    ),
    _fault(
        name="a message from before a replay ends the new round",
        at="core.dead_letters:disposition_of",
        do=Replace("> enqueued_at", "False"),
        caught_by=f"{_SETTLING}::test_a_message_from_before_a_replay_does_not_end_the_new_round",
    ),
    _fault(
        name="a task that is only a little late has another message",
        at="core.dead_letters:disposition_of",
        do=Replace("+ sent_at", "$1"),
        caught_by=f"{_CORE}::TestDisposition::"
        "test_a_message_is_dropped_if_its_task_was_enqueued_later",
    ),
    _fault(
        name="a message of no task goes without a word",
        at="core.dead_letters:disposition_of",
        do=Replace("KeepMessage() 'there is no task '", "None"),
        caught_by=f"{_SETTLING}::test_a_message_that_leads_nowhere_stays_listed_with_its_reason",
    ),
    _fault(
        name="a cancelled task is a dead letter",
        at="core.dead_letters:dead_letter_of_task",
        do=Condition("state", "$1 not in ($2, TaskState.CANCELLED)"),
        caught_by=f"{_CORE}::TestLetters::test_any_other_task_is_none",
    ),
    _fault(
        name="one matching filter is enough",
        at="core.dead_letters:DeadLetterFilter.matches",
        do=Value("return include_orphans", "$1 and $2 or ($3 and $4 and $5 and $6)"),
        caught_by=f"{_CORE}::TestFilter::test_every_condition_must_match",
    ),
    _fault(
        name="letters from before are meant too",
        at="core.dead_letters:DeadLetterFilter.matches",
        do=Operator(">= at", "<="),
        caught_by=f"{_CORE}::TestFilter::test_each_condition_selects",
    ),
    _fault(
        name="of a long history only the beginning is read",
        at="services.reads:iter_history",
        do=Replace("= sequence", "return"),
        caught_by=f"{_POST_MORTEM}::test_a_long_history_is_read_to_its_end",
    ),
    _fault(
        name="last lines are shown with their secrets",
        at="services.dead_letters:_last_lines",
        do=Argument("OutputLineDocument()", "text", "line.decode()[:_LINE_CHARACTERS]"),
        caught_by=f"{_POST_MORTEM}::"
        "test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked",
    ),
    _fault(
        name="a line in two pieces is two lines",
        at="services.dead_letters:_last_lines",
        do=Drop("pop()"),
        caught_by=f"{_POST_MORTEM}::"
        "test_the_last_lines_of_the_last_attempt_are_there_whole_and_masked",
    ),
    _fault(
        name="all of a great deal of output is read",
        at="services.dead_letters:_last_lines",
        do=Replace("max()", "0"),
        caught_by=f"{_POST_MORTEM}::test_of_a_great_deal_of_output_only_the_end_is_read",
    ),
    _fault(
        name="who ended it is that of the first round",
        at="services.dead_letters:_ended_by",
        do=Replace("reversed()", "$1"),
        caught_by=f"{_POST_MORTEM}::test_who_ended_it_is_that_of_the_last_round",
    ),
    _fault(
        name="dead letters are reported at every check",
        at="core.alerts:_change_of",
        do=Value("return cool_down_passed()", "$1"),
        caught_by=f"{_ALERTS}::test_the_first_items_are_reported_once_with_the_backlog",
    ),
    _fault(
        name="a dead letter that comes as another goes is not noticed",
        at="core.alerts:_change_of",
        do=Drop("> sort_key"),
        caught_by=f"{_ALERTS}::test_new_items_are_reported_at_once_and_once",
    ),
    _fault(
        name="a dead letter of a clock that is behind is not noticed",
        at="core.alerts:_change_of",
        do=Drop("> minimum_count"),
        caught_by=f"{_ALERTS}::test_new_items_are_reported_at_once_and_once",
    ),
    _fault(
        name="old dead letters are reported again after new ones",
        at="core.alerts:state_after",
        do=Argument(
            "ReportedBacklog()", "at", "state.backlogs[kind].at if kind in state.backlogs else $0"
        ),
        caught_by=f"{_ALERTS}::test_new_items_start_another_cool_down",
    ),
    _fault(
        name="the end of the backlog is reported repeatedly",
        at="core.alerts:state_after",
        do=Drop("pop()"),
        caught_by=f"{_ALERTS}::test_an_emptied_backlog_is_reported_once_and_the_next_item_is_a_first_one",
    ),
    _fault(
        name="a damaged alert state counts as an empty one",
        at="services.health:channel_states_from_json",
        do=Replace("raise", "return {}"),
        caught_by="unit/services/test_alerts.py::"
        "test_a_damaged_channel_state_is_refused_as_a_whole",
    ),
    _fault(
        name="a report of parked tasks counts as one of dead letters",
        at="core.alerts:notice_of",
        do=Argument("get()", 0, "'dead_letters'"),
        caught_by=f"{_ALERTS}::test_dead_letters_and_parked_tasks_are_reported_independently",
    ),
    _fault(
        name="tasks that go on by themselves hide parked ones that never do",
        at="services.reads:list_all",
        do=Replace("*=", "break"),
        caught_by=f"{_PARKED}::test_many_tasks_that_resume_by_themselves_do_not_hide_those_that_never_do",
    ),
    _fault(
        name="parked tasks of other tenants are reported",
        at="services.health:HealthCheck._read_parked",
        do=Drop("or tenant"),
        caught_by=f"{_PARKED}::test_a_check_of_one_tenant_reports_no_other",
    ),
    _fault(
        name="a parked task that cannot be read counts as resumed",
        at="services.health:HealthCheck._read_parked",
        do=Condition("unreadable", False),
        caught_by=f"{_PARKED_FAILING}::test_a_parked_task_that_cannot_be_read_is_not_reported_as_resumed",
    ),
    _fault(
        name="a channel with unknown state gets no report of parked tasks",
        at="services.health:HealthCheck._read_parked",
        do=Before("for items()", "await self.alert_sender.alerted_tenants()"),
        caught_by=f"{_PARKED_FAILING}::"
        "test_parked_tasks_are_reported_although_alerted_tenants_cannot_be_read",
    ),
    _fault(
        name="tasks that cannot be read hide dead letters",
        at="services.health:HealthCheck._record_and_alert",
        do=Drop("_alert()", nth=1),
        caught_by=f"{_FAILING}::test_unreadable_tasks_do_not_prevent_alerts_about_dead_letters",
    ),
    _fault(
        name="dead letters that cannot be read fail the check",
        at="services.health:HealthCheck.read_backlogs",
        do=Argument("log_and_continue()", "unavailable", None),
        caught_by=f"{_FAILING}::test_dead_letters_that_cannot_be_read_fail_no_check_of_tasks",
    ),
    _fault(
        name="all that ever failed is read at every check",
        at="services.health:HealthCheck._failed",
        do=Argument("failed_tasks()", "limit", "10 ** 9"),
        caught_by=f"{_CHECK}::test_no_more_are_counted_than_the_limit_however_many_there_are",
    ),
    _fault(
        name="a message without a task is reported to every tenant",
        at="services.health:HealthCheck._read_dead",
        do=Value("= tenant", "$1", nth=1),
        caught_by=f"{_CHECK}::"
        "test_a_message_without_a_task_is_reported_to_the_operator_tenant_only",
    ),
    _fault(
        name="a message that will end its task is reported besides the task",
        at="services.health:HealthCheck._orphan_messages",
        do=Drop("not in task_id"),
        caught_by=f"{_CHECK}::"
        "test_a_message_whose_task_the_next_sweep_fails_is_reported_once_as_that_task",
    ),
    _fault(
        name="only the first tenants with dead letters are reported",
        at="services.reads:iter_pages",
        do=Replace("= []", "break"),
        caught_by=f"{_CHECK}::test_of_very_many_tenants_none_is_left_out",
    ),
    _fault(
        name="dead letters fill the history of checks",
        at="services.health:HealthCheck._reports",
        do=Replace("append", "reports.append"),
        caught_by=f"{_CHECK}::"
        "test_a_tenant_with_nothing_but_dead_letters_gets_no_history_of_checks",
    ),
    _fault(
        name="a report of dead letters only is not stored",
        at="services.health:AlertRecords.save",
        do=Condition("EMPTY_CHANNEL_STATE", "$1.problems"),
        caught_by=f"{_FAILING}::test_the_next_process_does_not_repeat_alerts",
    ),
    _fault(
        name="dead letters have room that is not there",
        at="adapters.alerts.slack:_health_message",
        do=Drop("sum() backlogs"),
        caught_by=f"{_SLACK}::test_backlogs_keep_a_message_within_the_limits_of_slack",
    ),
    _fault(
        name="a late message of a removed job raises an alert",
        at="services.message_source:MessageTaskSource._triage",
        do=Condition("was_removed()", False),
        caught_by=f"{_REJECTED}::"
        "test_a_message_of_a_job_that_retention_removed_is_dropped_and_not_reported",
    ),
    _fault(
        name="a dead message of a removed job stays",
        at="services.dead_letters:DeadLetters._decide",
        do=Condition("was_removed()", False),
        caught_by=f"{_REJECTED}::"
        "test_a_dead_message_of_a_job_that_retention_removed_is_dropped_and_not_reported",
    ),
    _fault(
        name="a dead message of a removed job raises an alert",
        at="services.health:HealthCheck._orphan_messages",
        do=Drop("|="),
        caught_by=f"{_REJECTED}::"
        "test_a_dead_message_of_a_job_that_retention_removed_is_dropped_and_not_reported",
    ),
    _fault(
        name="a rejected message is deleted before the event is written",
        at="services.message_source:MessageTaskSource._reject",
        do=Before("append()", "await self._queue.delete([message.receipt])"),
        caught_by=f"{_REJECTED}::test_a_message_that_is_rejected_twice_is_reported_once",
    ),
    _fault(
        name="a message that is rejected again is a new one",
        at="services.health:HealthCheck._read_rejected",
        do=Replace("reversed()", "$1"),
        caught_by=f"{_REJECTED}::test_a_message_that_is_rejected_twice_is_reported_once",
    ),
    _fault(
        name="of many rejected messages the oldest are reported",
        at="services.health:HealthCheck._read_rejected",
        do=Argument("history()", "after", "0"),
        caught_by=f"{_REJECTED}::test_of_very_many_rejected_messages_the_newest_are_reported",
    ),
    _fault(
        name="rejected messages are reported for ever",
        at="services.health:HealthCheck._read_rejected",
        do=Value("= now()", "$0 - 99 * REJECTED_MESSAGE_LIFETIME"),
        caught_by=f"{_REJECTED}::test_rejected_messages_are_reported_once_and_when_a_day_is_over",
    ),
    _fault(
        name="rejected messages are reported to every tenant that asks",
        at="services.health:HealthCheck._read_rejected",
        do=Condition("tenants", "self.backend.queue is None"),
        caught_by=f"{_REJECTED}::test_rejected_messages_are_reported_to_the_operator_tenant_only",
    ),
    _fault(
        name="what an operator discards is reported as rejected",
        at="core.alerts:rejected_message_item",
        do=Condition("origin", "$1"),
        caught_by=f"{_REJECTED}::test_what_an_operator_discards_is_not_reported_as_rejected",
    ),
    _fault(
        name="channels are reminded of rejected messages",
        at="core.alerts:_change_of",
        do=Condition("REJECTED_MESSAGES", False),
        caught_by=f"{_ALERTS}::test_rejected_messages_are_reported_without_reminders",
    ),
)
