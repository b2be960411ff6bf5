"""Faults in how attempts run: the fork server, its reapers, and the children.

They take effect in processes that start with a clean environment, so only a copy of the sources
that is the installed one shows them (see ``trial``).
"""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_NASTY = "execution/test_misbehaving_children.py"
_STOPPING = "execution/test_runner_stopping.py"
_RUNNER = "execution/test_runner.py"
_REPORTS = "execution/test_runner_reports.py"
_ATTEMPT_SPECS = "execution/test_attempt_specs.py"
_DEADLINES = "execution/test_attempt_deadlines.py"
_REAPERS = "execution/test_reapers.py"
_FOREIGN_PROCESSES = "execution/test_outsiders.py"
_WORKER_REGISTRY = "execution/test_worker_registry_of_attempts.py"
_SLOTS = "execution/test_slots.py"
_SLOT_KILLS = "execution/test_slot_kills.py"
_SLOT_PROTOCOL = "execution/test_slot_protocol.py"
_SECRETS = "acceptance/test_secrets.py"
_ISOLATION = "acceptance/test_isolation.py"
_USERS = "acceptance/test_task_users.py"

_fault = partial(Fault, part=Part.CHILDREN)

CHILD_FAULTS = (
    _fault(
        name="a program in a slot does not learn that it runs inside a task",
        at="execution.forkserver.child:TaskEnvironment.__init__",
        do=Replace("SLOT_VARIABLE", "'LONGSHORE'"),
        caught_by="acceptance/test_python_api.py::"
        "test_a_store_that_is_not_named_is_refused_inside_a_task",
    ),
    _fault(
        name="a guard adopts no orphans",
        at="execution.forkserver.reaper:Reaper.__init__",
        do=Drop("become_subreaper()"),
        caught_by=f"{_NASTY}::test_no_process_that_a_child_leaves_behind_outlives_the_attempt",
    ),
    _fault(
        name="a process that is left behind keeps running",
        at="execution.forkserver.reaper:ReapedProcesses.kill_all",
        do=Replace("descendants()", "()"),
        caught_by=f"{_NASTY}::test_no_process_that_a_child_leaves_behind_outlives_the_attempt",
    ),
    _fault(
        name="a reaper ignores the end of the fork server",
        at="execution.forkserver.reaper:Reaper._wait",
        do=Condition("_end_pipe", False),
        caught_by=f"{_NASTY}::test_no_process_of_an_attempt_survives_the_killed_fork_server",
    ),
    _fault(
        name="a guard lets go of the worker's lock",
        at="execution.forkserver.reaper:Reaper.__init__",
        do=Argument("close_other_fds()", 0, "{*moved, end_pipe}"),
        caught_by=f"{_WORKER_REGISTRY}::test_a_worker_is_not_dead_while_a_process_of_its_attempt_is_alive",
    ),
    _fault(
        name="the total memory is not checked",
        at="execution.forkserver.reaper:Reaper._kill_cause",
        do=Condition("used", False),
        caught_by=f"{_NASTY}::test_processes_that_together_exceed_the_limit_are_out_of_memory",
    ),
    _fault(
        name="an attempt runs on after its deadline",
        at="execution.forkserver.reaper:Reaper._kill_cause",
        do=Condition("deadline_ns", False),
        caught_by=f"{_DEADLINES}::test_a_stopped_worker_does_not_keep_its_attempt_alive",
    ),
    _fault(
        name="the deadline of an attempt is not moved",
        at="execution.host.attempt:ProcessAttempt.trust_until",
        do=Condition("_status", False),
        caught_by=f"{_DEADLINES}::test_a_deadline_that_is_moved_is_not_enforced",
    ),
    _fault(
        name="a request to end kills",
        at="execution.forkserver.reaper:ReapedProcesses.end",
        do=Replace("signal_group()", "setattr(self, 'kill_at_ns', 1)"),
        caught_by=f"{_STOPPING}::test_stopping_first_sends_sigterm_to_the_whole_group",
    ),
    _fault(
        name="only the leader is asked to end",
        at="execution.forkserver.reaper:ReapedProcesses.signal_group",
        do=Replace("killpg", "os.kill"),
        caught_by=f"{_STOPPING}::test_stopping_signals_a_grandchild_whose_parent_waits_for_it",
    ),
    _fault(
        name="the fork server adopts no orphans",
        at="execution.forkserver.server:ForkServer.run",
        do=Drop("become_subreaper()"),
        caught_by=f"{_REAPERS}::test_a_daemon_does_not_outlive_an_attempt_whose_reaper_was_killed",
    ),
    _fault(
        name="orphans of a killed guard live on",
        at="execution.forkserver.server:ForkServer._wait_for_reapers",
        do=Drop("_kill_orphans()"),
        caught_by=f"{_NASTY}::test_no_process_of_an_attempt_survives_its_killed_reaper",
    ),
    _fault(
        name="a leader has no session of its own",
        at="execution.forkserver.reaper:Reaper._fork_process",
        do=Drop("setsid()"),
        caught_by=f"{_NASTY}::test_a_child_may_have_a_terminal",
    ),
    _fault(
        name="limits are not set",
        at="execution.forkserver.child:_run_spec",
        do=Drop("apply_resource_limits()"),
        caught_by=f"{_NASTY}::test_a_file_beyond_its_size_is_not_written",
    ),
    _fault(
        name="a child begins anywhere",
        at="execution.forkserver.child:_run_spec",
        do=Drop("chdir()"),
        caught_by=f"{_RUNNER}::"
        "test_a_child_gets_only_its_environment_and_reads_its_input_from_a_private_file",
    ),
    _fault(
        name="only the first task of a pool child begins in its folder",
        at="execution.forkserver.slot_child:SlotChild._serve_pool",
        do=Drop("fchdir()"),
        caught_by=f"{_SLOTS}::test_a_task_of_a_pool_finds_the_process_as_the_one_before_did",
    ),
    _fault(
        name="a task is believed to have left its variables alone",
        at="execution.forkserver.child:TaskEnvironment.apply",
        do=Replace("!=", "False"),
        caught_by=f"{_SLOTS}::test_a_task_of_a_pool_finds_the_process_as_the_one_before_did",
    ),
    _fault(
        name="a trace is printed with its secrets",
        at="execution.runners.executor:write_traceback",
        do=Argument("write()", 0, "$1"),
        caught_by=f"{_SECRETS}::test_secrets_are_masked_in_the_traceback_that_the_runner_prints",
    ),
    _fault(
        name="anybody may read an order",
        at="execution.host.launcher:_write_private",
        do=Argument("open()", 2, "0o644"),
        caught_by=f"{_RUNNER}::"
        "test_a_child_gets_only_its_environment_and_reads_its_input_from_a_private_file",
    ),
    _fault(
        name="unread output is lost at the end",
        at="execution.host.attempt:ProcessAttempt._handle_status",
        do=Drop("for file"),
        caught_by=f"{_REPORTS}::test_output_waits_for_a_slow_store_also_after_the_child_has_ended",
    ),
    _fault(
        name="the pipes of an attempt stay open after its end",
        at="execution.host.attempt:ProcessAttempt._handle_status",
        do=Drop("_close_pipes()"),
        caught_by=f"{_FOREIGN_PROCESSES}::test_an_attempt_ends_although_another_process_holds_its_pipes_open",
    ),
    _fault(
        name="a child takes what was meant for the one before",
        at="execution.forkserver.child:AttemptChild.run",
        do=Condition("generation", True),
        caught_by=f"{_ATTEMPT_SPECS}::"
        "test_an_attempt_whose_child_has_ended_before_it_took_it_is_not_started",
    ),
    _fault(
        name="a killed child is reported as ended by itself",
        at="execution.host.attempt:ProcessAttempt.stop",
        do=Condition("was_killed", False),
        caught_by=f"{_STOPPING}::test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period",
    ),
    _fault(
        name="one that ended without a word has a result",
        at="execution.host.attempt:ProcessAttempt.ending",
        do=Condition("runner", True, nth=1),
        caught_by=f"{_RUNNER}::test_a_function_that_exits_without_a_report_has_crashed",
    ),
    _fault(
        name="a heartbeat shows secrets",
        at="execution.host.report_decoder:_excerpt",
        do=Replace("safe_excerpt()", "$1[:_NAME_CHARACTERS]"),
        caught_by="execution/test_report_decoder.py::"
        "test_secrets_are_masked_in_everything_that_a_heartbeat_reports",
    ),
    _fault(
        name="a child begins a task after the deadline",
        at="execution.slot_page:SlotPage.begin",
        do=Condition("now", False),
        caught_by=f"{_SLOT_PROTOCOL}::test_nothing_begins_after_the_deadline",
    ),
    _fault(
        name="a task runs on after the deadline",
        at="execution.forkserver.reaper:Reaper._kill_cause",
        do=Condition("deadline_ns", False),
        caught_by=f"{_SLOT_KILLS}::test_a_stopped_worker_does_not_keep_its_child_alive",
    ),
    _fault(
        name="a fork of a task keeps the threads of the task",
        at="execution.forkserver.slot_child:SlotChild._begin",
        do=Drop("set_thread_reset()"),
        caught_by=f"{_SLOTS}::test_a_fork_of_a_task_knows_that_its_threads_are_gone",
    ),
    _fault(
        name="a reaper imports what a task has left",
        at="execution.forkserver.reaper:Reaper._clean_up",
        do=Drop("chdir()"),
        caught_by=f"{_SLOT_KILLS}::test_a_reaper_imports_nothing_that_a_task_has_left",
    ),
    _fault(
        name="a child finds the files of the one before it",
        at="execution.forkserver.reaper:Reaper._report_end",
        do=Replace("_folder_is_new()", "True"),
        caught_by=f"{_SLOTS}::test_each_task_of_a_fork_begins_in_an_empty_folder",
    ),
    _fault(
        name="the folder of a killed reaper is not stored",
        at="execution.host.slots:_ChildSlot._folder_left",
        do=Replace("exists()", "True"),
        caught_by=f"{_SLOT_KILLS}::test_the_files_of_a_task_outlive_its_reaper",
    ),
    _fault(
        name="a child of a slot keeps what a task left behind",
        at="execution.forkserver.slot_child:SlotChild._serve_pool",
        do=Drop("has_children()"),
        caught_by=f"{_SLOTS}::test_a_child_of_a_pool_that_was_left_unclean_is_replaced",
    ),
    _fault(
        name="a fork of a task acts as the child",
        at="execution.forkserver.slot_child:SlotChild._execute",
        do=Condition("getpid()", False),
        caught_by=f"{_SLOTS}::test_a_fork_of_a_task_does_not_act_as_the_child",
    ),
    _fault(
        name="a slot whose child can have no folder is open",
        at="execution.forkserver.reaper:Reaper.run",
        do=Drop("_enter_folder()"),
        caught_by=f"{_SLOTS}::test_a_slot_without_a_folder_for_its_child_is_not_opened",
    ),
    _fault(
        name="an outcome does not wait for what the task left behind",
        at="execution.host.slots:_ChildSlot._finish",
        do=Condition("child_ends", False),
        caught_by=f"{_SLOTS}::test_a_child_of_a_pool_that_was_left_unclean_is_replaced",
    ),
    _fault(
        name="a child may report the outcome of a task that waits",
        at="execution.host.slots:_ChildSlot._handle_frame",
        do=Condition("popleft()", "$1 or $2 or not self._unreported.popleft()"),
        caught_by=f"{_SLOT_KILLS}::test_a_child_that_sends_garbage_is_killed_and_replaced",
    ),
    _fault(
        name="a child serves two tenants",
        at="execution.host.slots:_ChildSlot.give",
        do=Condition("tenant", False, nth=1),
        caught_by="contract/test_child_slots.py::TestProcessSlots::"
        "test_a_child_of_a_pool_serves_one_tenant",
    ),
    _fault(
        name="a task gets the options of another definition",
        at="execution.host.slots:_ChildSlot._definition_text",
        do=Replace("get()", "next(iter(self._definitions.values()), None)"),
        caught_by=f"{_SLOTS}::test_a_child_that_takes_a_task_while_the_one_before_is_taken_back_"
        "has_its_definition",
    ),
    _fault(
        name="the grace period of a stopped child does not end",
        at="execution.forkserver.reaper:Reaper._supervise",
        do=Condition("kill_at_ns", False),
        caught_by=f"{_STOPPING}::test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period",
    ),
    _fault(
        name="a task can read the memory of its worker",
        at="interfaces.cli.client:load_command_settings",
        do=Drop("hide_memory()"),
        caught_by=f"{_SECRETS}::"
        "test_a_task_cannot_read_the_environment_and_files_of_the_processes_above_it",
    ),
    _fault(
        name="a task can read the memory of its fork server",
        at="execution.forkserver.__main__:main",
        do=Drop("hide_memory()"),
        caught_by=f"{_SECRETS}::"
        "test_a_task_cannot_read_the_environment_and_files_of_the_processes_above_it",
    ),
    _fault(
        name="a message of any type may be long",
        at="execution.host.report_decoder:is_too_long",
        do=Condition("is_large", True),
        caught_by=f"{_REPORTS}::test_a_long_message_that_is_no_result_fails_the_attempt",
    ),
    _fault(
        name="a long message is read before the one before it is stored",
        at="execution.host.attempt:ProcessAttempt._parse_long_lines",
        do=Condition("empty()", True),
        caught_by=f"{_REPORTS}::test_one_long_report_is_in_memory_at_a_time",
    ),
    _fault(
        name="a child may send a long message after its long result",
        at="execution.host.attempt:ProcessAttempt._handle_message",
        do=Condition("isinstance get() EncodedJson", False),
        caught_by=f"{_REPORTS}::test_no_long_message_is_accepted_after_a_long_result",
    ),
    _fault(
        name="the name in a long message may have any length",
        at="execution.host.report_decoder:_short",
        do=Condition("", False),
        caught_by="execution/test_report_decoder.py::"
        "test_a_long_message_is_read_without_a_copy_of_its_values",
    ),
    _fault(
        name="a long message is parsed on the event loop",
        at="execution.host.attempt:ProcessAttempt._handle_lines",
        do=Condition("PARSED_ON_LOOP_BYTES", False),
        caught_by=f"{_REPORTS}::test_long_messages_are_parsed_in_a_thread_and_keep_their_order",
    ),
    _fault(
        name="a message overtakes a long one before it",
        at="execution.host.attempt:ProcessAttempt._handle_lines",
        do=Condition("_parsing", False),
        caught_by=f"{_REPORTS}::test_long_messages_are_parsed_in_a_thread_and_keep_their_order",
    ),
    _fault(
        name="an attempt ends before its long result is parsed",
        at="execution.host.attempt:ProcessAttempt._report_rest",
        do=Condition("_parsing", False),
        caught_by=f"{_REPORTS}::test_long_messages_are_parsed_in_a_thread_and_keep_their_order",
    ),
    _fault(
        name="the processes of an attempt are not counted",
        at="execution.forkserver.reaper:Reaper._kill_cause",
        do=Condition("has_more_descendants()", False),
        caught_by=f"{_NASTY}::test_an_attempt_with_too_many_processes_is_ended",
    ),
    _fault(
        name="the processes of a slot are not limited",
        at="execution.host.slots:_ChildSlot.open",
        do=Drop("= max_processes"),
        caught_by=f"{_SLOT_KILLS}::test_a_child_with_too_many_processes_is_ended",
    ),
    _fault(
        name="the output of a task is not searched for its secrets",
        at="execution.host.attempt:ProcessAttempt._handle_output",
        do=Condition("secrets", False),
        caught_by=f"{_ISOLATION}::test_a_secret_that_a_definition_gives_to_its_tasks_is_masked_everywhere",
    ),
    _fault(
        name="the messages of a task are not searched for its secrets",
        at="execution.host.attempt:ProcessAttempt._parse",
        do=Drop("mask_json()"),
        caught_by=f"{_ISOLATION}::test_a_secret_that_a_definition_gives_to_its_tasks_is_masked_everywhere",
    ),
    _fault(
        name="a long message of a task is not searched for its secrets",
        at="execution.host.attempt:ProcessAttempt._parse_long",
        do=Replace("mask_data()", "$1"),
        caught_by=f"{_ISOLATION}::test_a_secret_that_a_definition_gives_to_its_tasks_is_masked_everywhere",
    ),
    _fault(
        name="a worker starts although its tasks cannot start Python",
        at="execution.host.launcher:ProcessRunner.open",
        do=Drop("await check_python"),
        caught_by=f"{_USERS}::test_a_user_that_cannot_start_python_is_refused_at_the_start",
    ),
    _fault(
        name="the check of Python has the rights of the worker",
        at="execution.host.task_users:_IMPORT_AS_USER",
        do=Text("become_user(uid, gid, groups)", ""),
        caught_by=f"{_USERS}::test_a_user_that_cannot_import_longshore_is_refused",
    ),
    _fault(
        name="a task runs as the user of its worker",
        at="execution.forkserver.child:_run_spec",
        do=Drop("become_user()"),
        caught_by=f"{_USERS}::test_a_command_runs_as_the_user_of_its_tenant_alone",
    ),
    _fault(
        name="a task keeps the groups of its worker",
        at="execution.linux:become_user",
        do=Drop("setgroups()"),
        caught_by=f"{_USERS}::test_a_worker_with_capabilities_can_change_users_and_its_tasks_cannot",
    ),
    _fault(
        name="a task keeps the capabilities of its worker",
        at="execution.linux:become_user",
        do=Drop("_capset()"),
        caught_by=f"{_USERS}::test_a_worker_with_capabilities_can_change_users_and_its_tasks_cannot",
    ),
    _fault(
        name="a child of another user outlives its reaper",
        at="execution.linux:become_user",
        do=Drop("die_with_parent()"),
        caught_by=f"{_USERS}::test_a_killed_reaper_takes_the_child_of_another_user_with_it",
    ),
    _fault(
        name="a child sends messages of any length",
        at="execution.runners.channel:check_length",
        do=Condition("limit", False),
        caught_by="execution/test_report_decoder.py::"
        "test_a_child_refuses_to_send_what_the_worker_would_not_read",
    ),
    _fault(
        name="all tenants share the copies of repositories",
        at="execution.host.launcher:ProcessRunner._encode",
        do=Replace("/ 'repositories' tenant", "self.folder / 'repositories'"),
        caught_by=f"{_ATTEMPT_SPECS}::"
        "test_attempts_of_different_tenants_have_different_copies_of_repositories",
    ),
    _fault(
        name="a command gets no feedback",
        at="execution.host.launcher:ProcessRunner._encode",
        do=Condition("feedback", False),
        caught_by=f"{_ATTEMPT_SPECS}::"
        "test_a_command_finds_feedback_and_its_previous_output_in_files",
    ),
    _fault(
        name="a step name that is used again gives the first result",
        at="execution.runners.context:Context._numbered_step",
        do=Replace("ternary", "name"),
        caught_by="unit/execution/test_context.py::"
        "test_a_name_that_is_used_again_is_a_step_of_its_own",
    ),
    _fault(
        name="two steps with one name run at once",
        at="execution.runners.context:Context._numbered_step",
        do=Condition("_running_steps", False),
        caught_by="unit/execution/test_context.py::"
        "test_two_running_steps_with_the_same_name_are_refused",
    ),
    _fault(
        name="all tasks have one trace context",
        at="core.ids:traceparent_of",
        do=Value("= span", "_spread('a task', _SPAN_PRIME)"),
        caught_by=f"{_SLOTS}::test_each_task_has_a_trace_context_of_its_own",
    ),
    _fault(
        name="a worker gives any of its variables to tasks as a secret",
        at="settings:read_task_secret",
        do=Condition("listed", False),
        caught_by=f"{_ISOLATION}::"
        "test_a_task_whose_secret_the_worker_does_not_give_fails_with_the_remedy",
    ),
    _fault(
        name="a known secret is found only as it is",
        at="core.text.known_secrets:KnownSecrets.__init__",
        do=Replace("comprehension _forms()", "set(values)"),
        caught_by="unit/core/test_known_secrets.py::test_a_value_is_found_in_each_of_its_forms",
    ),
    _fault(
        name="a fork server that ends while it loads is started for ever",
        at="execution.host.forkserver_client:ForkServerClient",
        do=Condition("_MAX_FAILED_STARTS", True),
        caught_by=f"{_SLOT_KILLS}::"
        "test_a_fork_server_that_ends_while_it_loads_is_started_three_times",
    ),
    _fault(
        name="all attempts have one trace context",
        at="execution.host.launcher:ProcessRunner._encode",
        do=Argument("traceparent_of()", 1, "spec.job_id"),
        caught_by=f"{_ATTEMPT_SPECS}::test_each_attempt_has_a_trace_context_of_its_own",
    ),
    _fault(
        name="a command that is not revised finds files of a review",
        at="execution.host.launcher:ProcessRunner._encode",
        do=Condition("feedback", True),
        caught_by=f"{_ATTEMPT_SPECS}::test_a_command_that_is_not_revised_has_no_files_of_a_review",
    ),
)
