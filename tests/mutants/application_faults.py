"""Faults in the rules of ``Application`` itself."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Value

_RULES = "interfaces/test_application_rules.py"
_TENANTS = (
    "interfaces/test_application.py::test_operations_of_one_tenant_do_not_find_jobs_of_another"
)

_fault = partial(Fault, part=Part.APPLICATION)

_TERMINAL = "interfaces/test_cli_inspect.py"

APPLICATION_FAULTS = (
    _fault(
        name="a terminal gets what a task wrote",
        at="interfaces.cli.render.screen:_filtered",
        do=Condition("isatty()", True),
        caught_by=f"{_TERMINAL}::test_a_terminal_gets_only_colours_of_a_task",
    ),
    _fault(
        name="a pipe gets what a terminal gets",
        at="interfaces.cli.render.screen:_filtered",
        do=Condition("isatty()", False),
        caught_by=f"{_TERMINAL}::test_a_terminal_gets_only_colours_of_a_task",
    ),
    _fault(
        name="a colour in two writes is lost",
        at="interfaces.cli.render.screen:_TerminalWriter.write",
        do=Replace("findall()", '[""]'),
        caught_by=f"{_TERMINAL}::test_a_control_sequence_in_two_writes_is_one",
    ),
    _fault(
        name="unknown query parameters are ignored",
        at="interfaces.rest.requests:check_query",
        do=Condition("unknown", False),
        caught_by="interfaces/rest/test_lookups.py::test_an_unknown_query_parameter_is_refused",
    ),
    _fault(
        name="a cancellation does not check the tenant",
        at="services.app:Application.cancel_job",
        do=Argument("cancel_job()", "tenant", None),
        caught_by=f"{_RULES}::test_a_cancellation_by_another_tenant_changes_nothing",
    ),
    _fault(
        name="the states of tasks are read across tenants",
        at="services.app:Application.resume",
        do=(Drop("await _job()"), Argument("resume()", "tenant", None)),
        caught_by=_TENANTS,
    ),
    _fault(
        name="a cancellation names the tenant as its caller",
        at="services.app:Application.cancel_job",
        do=Argument("cancel_job()", "by", "self.caller.tenant"),
        caught_by=f"{_RULES}::test_a_command_names_its_caller_in_the_history",
    ),
    _fault(
        name="a resume without tasks resumes every task",
        at="services.app:Application.resume",
        do=Condition("_RESUMABLE", True),
        caught_by=f"{_RULES}::test_a_job_without_failed_or_cancelled_tasks_cannot_be_resumed",
    ),
    _fault(
        name="a missing result is answered as null",
        at="services.app:Application.get_result",
        do=Condition("result", False),
        caught_by=f"{_RULES}::test_a_task_without_a_result_says_so",
    ),
    _fault(
        name="every caller sees dead messages in listings",
        at="services.app:Application._visible",
        do=Argument("replace()", "include_orphans", "True"),
        caught_by=f"{_RULES}::test_a_caller_without_the_operator_scope_does_not_see_dead_messages",
    ),
    _fault(
        name="every caller may read a dead message",
        at="services.app:Application._dead_letter",
        do=Condition("is_operator", False),
        caught_by=f"{_RULES}::test_a_caller_without_the_operator_scope_does_not_see_dead_messages",
    ),
    _fault(
        name="every submit has the same request id",
        at="services.submit:Producer.new_request_id",
        do=Value("return", "'x' * 32"),
        caught_by=f"{_RULES}::test_each_submit_without_a_request_id_is_a_new_job",
    ),
    _fault(
        name="resuming a queue that is not paused succeeds",
        at="services.app:Application.resume_queue",
        do=Replace(
            "raise CommandRefused()",
            "return d.PausedQueueDocument(name=name, by='', reason=None, at='', until=None)",
        ),
        caught_by=f"{_RULES}::test_resuming_a_queue_that_is_not_paused_is_refused",
    ),
    _fault(
        name="a terminal gets control sequences of stored texts",
        at="interfaces.cli.render.screen:filter_terminals",
        do=Value("=", "(sys.stdout, sys.stderr)"),
        caught_by=f"{_TERMINAL}::test_a_terminal_gets_no_control_sequences_of_stored_texts",
    ),
    _fault(
        name="a cursor is masked as a secret",
        at="interfaces.cli.options",
        do=Argument("print_stderr() cursor", "masked", None),
        caught_by=f"{_TERMINAL}::test_following_the_cursor_lists_every_job_once",
    ),
    _fault(
        name="an attempt counts as used when it is parked",
        at="interfaces.cli.commands.inspect:_task_row",
        do=Replace("+ attempts_used", "task.attempt"),
        caught_by="interfaces/test_cli_budget.py::test_parked_attempts_are_not_counted_in_listings",
    ),
    _fault(
        name="the folder of the log file must exist",
        at="interfaces.cli.log_records:log_to_file",
        do=Drop("mkdir()"),
        caught_by="interfaces/test_log_files.py::test_the_folder_of_the_log_file_is_created",
    ),
    _fault(
        name="a job file expands to more values",
        at="interfaces.document_files:read_document",
        do=Argument("parse_yaml()", "value_limit", "2 * JOB_FILE_VALUE_LIMIT"),
        caught_by="interfaces/test_cli_submit.py::"
        "test_aliases_that_expand_to_millions_of_values_are_refused",
    ),
    _fault(
        name="a stored file is hidden by one that is made of its task",
        at="services.app:Application.open_artifact",
        do=Condition("size", "$0 and name not in derived_files(row)"),
        caught_by=f"{_RULES}::"
        "test_a_file_that_an_attempt_stored_has_precedence_and_pages_are_in_order",
    ),
    _fault(
        name="there is no warning that tenants share a user",
        at="services.api_keys:ApiKeys.shared_workers_warning",
        do=Condition("len()", True),
        caught_by="interfaces/test_cli_admin.py::"
        "test_the_first_key_of_a_second_tenant_gives_a_warning",
    ),
)
