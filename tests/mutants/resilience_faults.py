"""Faults in retries, races and error boundaries."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Operator, Replace, Value

_TESTS = "unit/services/test_resilience.py"
_CONNECTIONS = "interfaces/rest/test_connections.py"
_STOPS = "acceptance/test_drain.py"
_UP = "interfaces/test_cli_up.py"

_fault = partial(Fault, part=Part.RESILIENCE)

RESILIENCE_FAULTS = (
    _fault(
        name="a retry does not pause",
        at="services.resilience:retry_unavailable",
        do=Drop("sleep()"),
        caught_by=f"{_TESTS}::test_a_call_is_retried_with_the_pauses_in_between",
    ),
    _fault(
        name="the last retry is not made",
        at="services.resilience:retry_unavailable",
        do=Replace("return call()", "raise BackendUnavailable('gave up')", nth=2),
        caught_by=f"{_TESTS}::"
        "test_a_call_that_keeps_failing_is_made_once_more_than_there_are_pauses",
    ),
    _fault(
        name="every error is retried",
        at="services.resilience:retry_unavailable",
        do=Replace("BackendUnavailable", "Exception"),
        caught_by=f"{_TESTS}::test_another_error_is_not_retried",
    ),
    _fault(
        name="pauses continue once more after the timeout",
        at="services.resilience:pauses_within",
        do=Operator("< elapsed()", "<="),
        caught_by=f"{_TESTS}::test_pauses_end_when_the_timeout_has_passed",
    ),
    _fault(
        name="a race waits for all awaitables",
        at="services.resilience:race",
        do=Replace("FIRST_COMPLETED", "asyncio.ALL_COMPLETED"),
        caught_by=f"{_TESTS}::test_a_race_yields_when_the_first_awaitable_is_done",
    ),
    _fault(
        name="the losers of a race keep running",
        at="services.resilience:race",
        do=Drop("cancel()"),
        caught_by=f"{_TESTS}::test_the_losers_of_a_race_have_ended_when_it_is_left",
    ),
    _fault(
        name="a race does not wait for its losers to end",
        at="services.resilience:race",
        do=Drop("gather()"),
        caught_by=f"{_TESTS}::test_the_losers_of_a_race_have_ended_when_it_is_left",
    ),
    _fault(
        name="a race cancels a future of its caller",
        at="services.resilience:race",
        do=Value("= own", "list(futures)"),
        caught_by=f"{_TESTS}::test_a_future_of_the_caller_is_not_cancelled_by_a_race",
    ),
    _fault(
        name="an unavailable backend counts as an error of one item",
        at="services.resilience:log_and_continue",
        do=Drop("except BackendUnavailable"),
        caught_by=f"{_TESTS}::test_an_unexpected_error_is_logged_and_an_unavailable_backend_is_not",
    ),
    _fault(
        name="a store on a full disk passes",
        at="interfaces.cli.commands.doctor:_store_checks",
        do=Condition("unreadable", False),
        caught_by="interfaces/test_cli_doctor.py::"
        "test_a_full_or_read_only_disk_is_not_called_damage",
    ),
    _fault(
        name="the soft limit of open files is not raised",
        at="execution.host.forkserver_client:raise_open_files_limit",
        do=Drop("setrlimit()"),
        caught_by=f"{_UP}::test_it_may_open_more_files_than_it_was_started_with_and_its_tasks_may_not",
    ),
    _fault(
        name="tasks may open as many files as the worker",
        at="execution.forkserver.reaper:Reaper.__init__",
        do=Drop("setrlimit()"),
        caught_by=f"{_UP}::test_it_may_open_more_files_than_it_was_started_with_and_its_tasks_may_not",
    ),
    _fault(
        name="a stop has no last deadline",
        at="interfaces.cli.signals:StopSignals.on_signal",
        do=Drop("end_process_after()"),
        caught_by=f"{_STOPS}::test_a_stop_that_can_store_nothing_ends_at_its_last_deadline",
    ),
    _fault(
        name="a half header keeps its connection open",
        at="interfaces.rest.server:_Connection._watch_header",
        do=Replace("_HEADER_TIMEOUT_S", "3600"),
        caught_by=f"{_CONNECTIONS}::test_a_connection_without_a_complete_header_is_closed",
    ),
    _fault(
        name="a slow body closes its connection",
        at="interfaces.rest.server:_Connection.data_received",
        do=Drop("_watch_header()"),
        caught_by=f"{_CONNECTIONS}::"
        "test_a_request_that_takes_longer_than_its_header_may_is_answered",
    ),
    _fault(
        name="connections are not bounded",
        at="interfaces.rest.server:_Connection.connection_made",
        do=Drop("abort()"),
        caught_by=f"{_CONNECTIONS}::"
        "test_connections_beyond_a_quarter_of_the_descriptors_are_closed",
    ),
    _fault(
        name="each error of accept is logged",
        at="interfaces.rest.server:_ServerState.log_refusal",
        do=Drop("= log_again_at"),
        caught_by=f"{_CONNECTIONS}::test_errors_of_accept_are_logged_once_a_second",
    ),
    Fault(
        name="a worker survives its data folder",
        part=Part.LEDGER,
        at="adapters.sqlite.database:Database._check_file",
        do=Drop("end_process()"),
        caught_by=f"{_STOPS}::test_a_worker_whose_data_folder_was_removed_ends_and_says_so",
    ),
    _fault(
        name="a run waits for ever for a full disk",
        at="interfaces.cli.commands.run:_Follower._watch_store",
        do=Drop("put()"),
        caught_by="interfaces/test_cli_run.py::"
        "test_a_disk_that_stays_full_is_named_and_ends_the_run",
    ),
    _fault(
        name="each probe writes",
        at="services.resilience:Readiness.check",
        do=Condition("PROBE_INTERVAL", True),
        caught_by="unit/services/test_readiness.py::test_probes_share_one_write_every_five_seconds",
    ),
    Fault(
        name="a full disk is ready while a page fits",
        part=Part.LEDGER,
        at="adapters.sqlite.database:Database._rewrite",
        do=Drop("check_free_space()"),
        caught_by="adapters/sqlite/test_writer.py::"
        "test_a_test_write_on_a_nearly_full_disk_names_folder_and_free_bytes",
    ),
    _fault(
        name="a long submit holds the event loop",
        at="interfaces.rest.requests:submit_off_loop",
        do=Condition("may_block", False),
        caught_by="interfaces/rest/test_hostile_shapes.py::test_a_large_job_does_not_hold_the_loop",
    ),
    _fault(
        name="streams of a key are not bounded",
        at="interfaces.rest.auth:take_stream",
        do=Condition("limit", False),
        caught_by="interfaces/rest/test_many_readers.py::"
        "test_streams_of_a_key_are_bounded_and_count_until_they_end",
    ),
    _fault(
        name="a probe only reads",
        at="services.resilience:Readiness._probe",
        do=Condition("prove_write", True),
        caught_by="unit/services/test_readiness.py::"
        "test_a_refused_write_is_the_answer_until_one_succeeds",
    ),
    _fault(
        name="a test write is repeated while one hangs",
        at="services.resilience:Readiness.check",
        do=Drop("done()", nth=1),
        caught_by="unit/services/test_readiness.py::"
        "test_a_write_that_hangs_is_not_repeated_and_every_later_probe_says_so_at_once",
    ),
    _fault(
        name="doctor makes no test write",
        at="interfaces.cli.commands.doctor:_store_checks",
        do=Value("= problem", "None"),
        caught_by="interfaces/test_cli_doctor.py::"
        "test_a_process_that_was_stopped_while_it_writes_fails_the_test_write",
    ),
    _fault(
        name="a run on a full disk ignores signals",
        at="interfaces.cli.commands.run:_Follower",
        do=(Drop("put()"), Drop("end_process_after()")),
        caught_by="interfaces/test_cli_run.py::test_a_signal_ends_a_run_on_a_full_disk",
    ),
    _fault(
        name="so many connections are accepted at once as may wait",
        at="interfaces.rest.server:serve",
        do=Argument("Config()", "backlog", "_BACKLOG"),
        caught_by="interfaces/test_up_faults.py::test_idle_connections_that_use_up_the_descriptors",
    ),
)
