"""Faults that the contract of the queues' pauses, and a worker's tests of them, must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Operator, Replace, Text, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteQueueControls"
_MEMORY = "contract/test_memory.py::TestMemoryQueueControls"
_STORED = "adapters/sqlite/test_queues.py"
_PAUSING = "unit/services/test_pause.py"
_WORKER = "unit/services/test_worker_pauses.py"
_SQLITE_HOLDS = "contract/test_sqlite.py::TestSqliteQueueHolds"
_MEMORY_HOLDS = "contract/test_memory.py::TestMemoryQueueHolds"
_HOLDS = "unit/services/test_worker_holds.py"

_fault = partial(Fault, part=Part.QUEUE_CONTROLS)

HOLD_FAULTS = (
    _fault(
        name="a hold wakes no worker",
        at="adapters.sqlite.configuration:SqliteQueueControls.hold",
        do=Argument("write()", "topics", None),
        caught_by=f"{_SQLITE_HOLDS}::test_a_waiter_is_notified_of_a_hold_and_of_its_expiry",
    ),
    _fault(
        name="a hold is waited for until it is on disk",
        at="adapters.sqlite.configuration:SqliteQueueControls.hold",
        do=Argument("write()", "durable", None),
        caught_by=f"{_STORED}::test_a_hold_does_not_wait_for_the_disk",
    ),
    _fault(
        name="a shorter hold takes the place of a longer one",
        at="adapters.sqlite.configuration:_LONGER_HOLD",
        do=Text("until_us < excluded.until_us OR until_us > ?", "? > 0"),
        caught_by=f"{_SQLITE_HOLDS}::test_of_two_holds_the_one_that_lasts_longer_counts",
    ),
    _fault(
        name="a hold of a clock that was ahead keeps others away",
        at="adapters.sqlite.configuration:_LONGER_HOLD",
        do=Text("until_us > ?", "? < 0"),
        caught_by=f"{_SQLITE_HOLDS}::"
        "test_a_hold_of_a_clock_that_was_far_ahead_is_nothing_and_gives_way",
    ),
    _fault(
        name="a resume leaves the hold",
        at="adapters.sqlite.configuration:_RESUME",
        do=Text("name = ?", "name = ? AND hold = 0"),
        caught_by=f"{_SQLITE_HOLDS}::test_to_resume_a_queue_ends_its_pause_and_its_hold",
    ),
    _fault(
        name="a shorter hold takes the place of a longer one in memory",
        at="testing.memory.queues:MemoryQueueControls.hold",
        do=Replace("< remaining()", "True"),
        caught_by=f"{_MEMORY_HOLDS}::test_of_two_holds_the_one_that_lasts_longer_counts",
    ),
    _fault(
        name="the end of a hold wakes no worker in memory",
        at="testing.memory.queues:MemoryQueueControls.paused_queues",
        do=Argument("wait_until()", "next_change", None),
        caught_by=f"{_MEMORY_HOLDS}::test_a_waiter_is_notified_of_a_hold_and_of_its_expiry",
    ),
    _fault(
        name="a resume leaves the hold in memory",
        at="testing.memory.queues:MemoryQueueControls.resume",
        do=Replace("pop() _hold_by_queue", "self._hold_by_queue.get($1)"),
        caught_by=f"{_MEMORY_HOLDS}::test_to_resume_a_queue_ends_its_pause_and_its_hold",
    ),
    _fault(
        name="a hold lasts one tick longer than it says",
        at="core.queues:QueuePause.is_active",
        do=Operator("< timedelta()", "<="),
        caught_by=f"{_MEMORY_HOLDS}::test_a_hold_is_over_at_its_moment_and_then_is_nothing",
    ),
    _fault(
        name="a hold lasts as long as anybody wants",
        at="core.queues:capped_hold_end",
        do=Replace("min()", "$1"),
        caught_by=f"{_MEMORY_HOLDS}::test_no_hold_lasts_longer_than_the_longest",
    ),
    _fault(
        name="every refused request holds its queue",
        at="services.worker.attempts:Attempts._finish",
        do=Condition("AGENT", True),
        caught_by=f"{_HOLDS}::test_a_task_of_another_runner_holds_no_queue",
    ),
    _fault(
        name="any error with a retry time holds the queue",
        at="services.worker.output:hold_queue",
        do=Drop("is not category"),
        caught_by=f"{_HOLDS}::test_nothing_else_that_happens_to_an_agent_holds_its_queue",
    ),
    _fault(
        name="a queue is held for as long as the API wants",
        at="services.worker.output:hold_queue",
        do=Replace("min()", "$1"),
        caught_by=f"{_HOLDS}::test_a_hold_lasts_no_longer_than_was_asked_for_nor_than_it_may",
    ),
    _fault(
        name="a hold that ends soon is not waited for",
        at="services.worker.group:_has_work",
        do=Condition("is_active()", True),
        caught_by=f"{_HOLDS}::"
        "test_who_waits_for_the_end_of_all_work_waits_for_a_hold_that_ends_soon",
    ),
)

PAUSE_FAULTS = (
    _fault(
        name="a later pause takes the place of the first",
        at="adapters.sqlite.configuration:SqliteQueueControls.pause.work",
        do=Text("DO NOTHING", "DO UPDATE SET paused_by = excluded.paused_by"),
        caught_by=f"{_SQLITE}::test_of_two_pauses_the_first_counts",
    ),
    _fault(
        name="a pause wakes no worker",
        at="adapters.sqlite.configuration:SqliteQueueControls.pause",
        do=Argument("write()", "topics", None),
        caught_by=f"{_SQLITE}::test_a_waiter_is_notified_of_a_pause_and_of_its_end",
    ),
    _fault(
        name="a resume wakes no worker",
        at="adapters.sqlite.configuration:SqliteQueueControls.resume",
        do=Argument("write()", "topics", None),
        caught_by=f"{_SQLITE}::test_a_waiter_is_notified_of_a_pause_and_of_its_end",
    ),
    _fault(
        name="a resume may be lost with the power",
        at="adapters.sqlite.configuration:SqliteQueueControls.resume",
        do=Argument("write()", "durable", "False"),
        caught_by=f"{_STORED}::test_pauses_and_their_ends_are_promised",
    ),
    _fault(
        name="a resume ends every pause",
        at="adapters.sqlite.configuration:_RESUME",
        do=Text("name = ?", "?1 = ?1"),
        caught_by=f"{_SQLITE}::test_resume_returns_the_pause_that_ended",
    ),
    _fault(
        name="pauses are listed from the last to the first",
        at="adapters.sqlite.configuration:_PAUSES",
        do=Text("ORDER BY name", "ORDER BY name DESC"),
        caught_by=f"{_SQLITE}::test_pauses_are_listed_by_the_name_of_the_queue",
    ),
    _fault(
        name="the name of a paused queue is not taken at its word",
        at="adapters.sqlite.configuration:SqliteQueueControls.paused_queues.look",
        do=Replace("&", "$1 if $2 else $2"),
        caught_by=f"{_SQLITE}::test_a_pause_is_of_one_queue_only",
    ),
    _fault(
        name="the end of a pause is not reported",
        at="adapters.sqlite.configuration:SqliteQueueControls.paused_queues.look",
        do=Condition("!=", "$2 is None or $1 - $2"),
        caught_by=f"{_SQLITE}::test_a_waiter_is_notified_of_a_pause_and_of_its_end",
    ),
    _fault(
        name="known pauses are returned repeatedly",
        at="adapters.sqlite.configuration:SqliteQueueControls.paused_queues.look",
        do=Value("return !=", "$1"),
        caught_by=f"{_SQLITE}::test_a_waiter_is_not_notified_of_other_queues_or_of_nothing_new",
    ),
    _fault(
        name="a later pause takes the place of the first in memory",
        at="testing.memory.queues:MemoryQueueControls.pause",
        do=Replace("setdefault()", "pause = self._pauses[$1] = $2"),
        caught_by=f"{_MEMORY}::test_of_two_pauses_the_first_counts",
    ),
    _fault(
        name="a pause wakes no worker in memory",
        at="testing.memory.queues:MemoryQueueControls.pause",
        do=Drop("wake()"),
        caught_by=f"{_MEMORY}::test_a_waiter_is_notified_of_a_pause_and_of_its_end",
    ),
    _fault(
        name="a resume wakes no worker in memory",
        at="testing.memory.queues:MemoryQueueControls.resume",
        do=Drop("wake()"),
        caught_by=f"{_MEMORY}::test_a_waiter_is_notified_of_a_pause_and_of_its_end",
    ),
    _fault(
        name="pauses are listed as they came in memory",
        at="testing.memory.queues:MemoryQueueControls.list_pauses",
        do=Replace("name", "0"),
        caught_by=f"{_MEMORY}::test_pauses_are_listed_by_the_name_of_the_queue",
    ),
    *HOLD_FAULTS,
    _fault(
        name="a paused queue is asked for work",
        at="services.message_source:MessageTaskSource._active_queues",
        do=Replace("tuple()", "worker.queues"),
        caught_by=f"{_WORKER}::"
        "test_a_queue_that_is_paused_while_a_worker_waits_is_not_asked_until_it_is_resumed",
    ),
    _fault(
        name="what is not known to be paused is asked for work",
        at="services.message_source:MessageTaskSource._active_queues",
        do=Value("= _paused", "$0 or frozenset()"),
        caught_by=f"{_WORKER}::test_a_worker_that_cannot_know_what_is_paused_begins_nothing",
    ),
    _fault(
        name="one paused queue of a worker stops all of them",
        at="services.message_source:MessageTaskSource._active_queues",
        do=Replace("tuple()", "() if paused else worker.queues"),
        caught_by=f"{_WORKER}::test_other_queues_of_a_worker_are_served_meanwhile",
    ),
    _fault(
        name="a queue that is paused is waited for all the same",
        at="services.message_source:MessageTaskSource._receive",
        do=Replace("race()", "race($1, asyncio.shield(asyncio.Event().wait()))", nth=2),
        caught_by=f"{_WORKER}::test_other_queues_of_a_worker_are_served_meanwhile",
    ),
    _fault(
        name="a worker without any queue sleeps through the resume",
        at="services.message_source:MessageTaskSource._watch_pauses",
        do=Drop("set()"),
        caught_by=f"{_WORKER}::"
        "test_a_worker_that_starts_while_its_queue_is_paused_asks_for_nothing",
    ),
    _fault(
        name="what is delivered just when its queue is paused is begun",
        at="services.message_source:MessageTaskSource._handle",
        do=Condition("not in queue", False),
        caught_by=f"{_WORKER}::"
        "test_a_message_that_is_delivered_at_the_moment_of_the_pause_is_returned",
    ),
    _fault(
        name="a bug where pauses are kept makes a worker deaf to them",
        at="services.message_source:MessageTaskSource._watch_pauses",
        do=Replace("log_and_continue()", "contextlib.suppress(BackendUnavailable)"),
        caught_by=f"{_WORKER}::test_a_worker_that_cannot_know_what_is_paused_begins_nothing",
    ),
    _fault(
        name="a worker that waits for work ignores a stop",
        at="services.worker.worker:Worker.stop",
        do=Drop("_act()"),
        caught_by=f"{_WORKER}::test_a_worker_that_waits_for_work_stops_at_once",
    ),
    _fault(
        name="a queue of any name is paused",
        at="services.operator_commands:_check_name",
        do=Condition("is_name()", False),
        caught_by=f"{_PAUSING}::test_an_invalid_queue_name_is_refused_and_changes_nothing",
    ),
    _fault(
        name="a reason of any length is kept",
        at="services.operator_commands:OperatorCommands.pause_queue",
        do=Drop("= _checked_reason()"),
        caught_by=f"{_PAUSING}::test_a_reason_that_cannot_be_kept_is_refused_and_changes_nothing",
    ),
    _fault(
        name="a resume without effect is answered as done",
        at="services.operator_commands:OperatorCommands.resume_queue",
        do=Condition(
            "is not",
            "($1 := ($1 or QueuePause(name=name, by=by, reason=None,"
            " at=self.backend.clock.now())))",
        ),
        caught_by=f"{_PAUSING}::test_who_resumed_a_queue_is_in_the_log",
    ),
    _fault(
        name="what runs is not waited for when its queue is paused",
        at="services.worker.group:_has_work",
        do=Value("for PROCESSING", "((TaskState.PROCESSING, served), $2)"),
        caught_by=f"{_WORKER}::test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is",
    ),
    _fault(
        name="what lies on a paused queue is waited for",
        at="services.worker.group:_has_work",
        do=Value("for PROCESSING", "($1, (TaskState.PENDING, queues))"),
        caught_by=f"{_WORKER}::test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is",
    ),
)
