"""Faults that the tests of budgets must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Operator, Replace, Value

_CORE = "unit/core/test_budgets.py"
_SHARED = "unit/core/test_budgets_shared.py"
_PARKING = "unit/core/test_task_parking.py"
_WORKER = "unit/services/test_worker_budgets.py"
_FAILURES = "unit/services/test_worker_budgets_failures.py"
_ACCOUNTING = "unit/services/test_budget_reservations.py"
_TASKS = "unit/services/test_budgets.py"
_JOBS = "unit/services/test_budgets_jobs.py"
_DAYS = "unit/services/test_budgets_days.py"

_fault = partial(Fault, part=Part.BUDGETS)

BUDGET_FAULTS = (
    _fault(
        name="a budget of which nothing is left is not used up",
        at="core.budgets:exhaustion",
        do=Operator(">= limit", ">"),
        caught_by=f"{_CORE}::TestExhausted::"
        "test_a_budget_is_used_up_as_soon_as_nothing_is_left_of_a_part_of_it",
    ),
    _fault(
        name="what comes from a cache costs no tokens",
        at="core.budgets:total_tokens",
        do=Drop("cache_read_tokens"),
        caught_by=f"{_CORE}::TestExhausted::test_all_tokens_count_those_from_a_cache_too",
    ),
    _fault(
        name="a request adds each time that it comes",
        at="core.budgets:add_allowance",
        do=Drop("if requests"),
        caught_by=f"{_CORE}::TestAllowance::test_additions_add_up_and_each_request_counts_once",
    ),
    _fault(
        name="what others have reserved is there for everybody",
        at="core.budgets:shared_exhaustion",
        do=Replace("spent_and_reserved", "$1.spent"),
        caught_by=f"{_CORE}::TestReserving::test_what_one_has_reserved_is_gone_for_the_others",
    ),
    _fault(
        name="who asks for several at once is granted each",
        at="core.budgets:reserve",
        do=Argument(
            "replace() others", "reservations", "(*others, replace(own, reserved=Usage()))", nth=1
        ),
        caught_by=f"{_CORE}::TestReserving::"
        "test_who_asks_for_several_at_once_is_not_granted_more_than_there_is",
    ),
    _fault(
        name="an attempt that is over may go on spending",
        at="core.budgets:reserve",
        do=Drop("if Usage()"),
        caught_by=f"{_CORE}::TestReserving::"
        "test_an_attempt_whose_reservation_was_closed_is_refused",
    ),
    _fault(
        name="an attempt whose lease is lost is granted more",
        at="services.worker.attempts:Attempts.renew_one",
        do=Replace("isinstance()", "True"),
        caught_by=f"{_FAILURES}::test_nothing_is_spent_after_the_report_that_found_the_lease_lost",
    ),
    _fault(
        name="the usage of an ended attempt is forgotten",
        at="core.budgets:_without_reservation",
        do=Argument("replace()", "closed_usage", None),
        caught_by=f"{_SHARED}::test_however_many_spend_at_once_and_die_each_answer_is_counted_once",
    ),
    _fault(
        name="the day begins at the current time",
        at="core.budgets:day_budget_name",
        do=Replace("astimezone()", "at"),
        caught_by=f"{_CORE}::TestNames::test_each_job_and_each_day_has_an_account",
    ),
    _fault(
        name="what was allowed more before it was parked rests for ever",
        at="core.tasks.task:park",
        do=Condition("scope", False),
        caught_by=f"{_WORKER}::"
        "test_more_that_is_allowed_in_the_moment_in_which_a_task_is_parked_is_not_lost",
    ),
    _fault(
        name="the next day begins too early",
        at="core.tasks.task:unpark",
        do=Drop("< to_tick()"),
        caught_by=f"{_PARKING}::TestUnpark::"
        "test_a_task_with_a_resume_time_resumes_then_and_not_before",
    ),
    _fault(
        name="what earlier attempts have spent does not count",
        at="services.worker.budget_check:BudgetCheck._check_own",
        do=Drop("usage"),
        caught_by=f"{_WORKER}::test_spending_of_earlier_attempts_counts_for_the_task",
    ),
    _fault(
        name="a step pays for those before it",
        at="services.worker.budget_check:BudgetCheck._check_own",
        do=Drop("[] _step_starts"),
        caught_by=f"{_WORKER}::test_a_step_has_a_budget_of_its_own",
    ),
    _fault(
        name="questions on their way cost nothing",
        at="services.worker.budget_check:BudgetCheck.decide",
        do=Drop("= _pending"),
        caught_by=f"{_WORKER}::test_several_questions_at_once_are_all_counted",
    ),
    _fault(
        name="an answer is settled in every account of the attempt",
        at="services.worker.budget_check:BudgetCheck.settle",
        do=Condition("pending", "$2.setdefault($1, NO_USAGE)"),
        caught_by=f"{_WORKER}::"
        "test_an_attempt_that_spans_midnight_spends_in_two_days_and_is_counted_once",
    ),
    _fault(
        name="an addition to the job's budget is ignored",
        at="services.worker.budget_check:BudgetCheck._reserve_from_job",
        do=Drop("_refresh_job()"),
        caught_by=f"{_WORKER}::test_a_raised_job_budget_is_read_before_a_task_is_parked",
    ),
    _fault(
        name="what an attempt has reserved outlives it",
        at="services.worker.budget_check:BudgetCheck.close",
        do=Drop("close()"),
        caught_by=f"{_FAILURES}::test_a_drained_attempt_is_released_and_its_reservation_is_free",
    ),
    _fault(
        name="more is spent before it is written down what was",
        at="services.worker.budget_check:BudgetCheck._record_spend",
        do=Condition("stopped", False),
        caught_by=f"{_FAILURES}::test_nothing_more_is_spent_before_it_is_written_down_what_was",
    ),
    _fault(
        name="a conflict is taken for done",
        at="services.budgets:BudgetReservations.change",
        do=Drop("continue"),
        caught_by=f"{_ACCOUNTING}::test_concurrent_reservations_count_once_each",
    ),
    _fault(
        name="the dead keep what they had reserved",
        at="services.budgets:BudgetReservations.reserve",
        do=Condition("_close_leaked()", False),
        caught_by=f"{_ACCOUNTING}::test_reservations_of_dead_attempts_do_not_limit_others",
    ),
    _fault(
        name="what the dead had reserved keeps those who rest from going on",
        at="services.budgets:BudgetReservations.exhaustion",
        do=Condition("_close_leaked()", False),
        caught_by=f"{_DAYS}::test_the_released_reservation_of_a_dead_attempt_lets_another_task_resume",
    ),
    _fault(
        name="the living are taken for dead",
        at="services.budgets:BudgetReservations._close_leaked",
        do=Value("= not in", "list(reservations)"),
        caught_by=f"{_ACCOUNTING}::test_a_live_reservation_is_retained_and_a_refused_request_reserves_nothing",
    ),
    _fault(
        name="the next attempt of a task keeps what the first had",
        at="services.budgets:BudgetReservations._close_leaked",
        do=Replace("attempt row", "1"),
        caught_by=f"{_ACCOUNTING}::test_the_reservation_of_a_dead_attempt_is_released_although_the_task_has_a_new_lease",
    ),
    _fault(
        name="an addition whose answer was lost is refused",
        at="services.budgets:BudgetOperations._add_to_task",
        do=Condition("_has_added()", True),
        caught_by=f"{_TASKS}::test_an_addition_whose_answer_was_lost_counts_once",
    ),
    _fault(
        name="only the first page of parked tasks is resumed",
        at="services.reads:iter_tasks",
        do=Replace("if cursor", "return"),
        caught_by=f"{_JOBS}::test_more_than_a_page_of_tasks_resumes",
    ),
    _fault(
        name="many that rest hide one that may go on",
        at="services.reads:list_all",
        do=Replace("*=", "break"),
        caught_by=f"{_DAYS}::test_many_tasks_parked_for_another_reason_do_not_hide_one_that_may_resume",
    ),
    _fault(
        name="what is added to the day lets nothing go on",
        at="services.budgets:BudgetOperations._add_to_day",
        do=Drop("_unpark()"),
        caught_by=f"{_DAYS}::test_tasks_parked_for_this_budget_resume_and_the_same_request_adds_once",
    ),
    _fault(
        name="all go on although only a little is left",
        at="services.budgets:BudgetOperations.unpark_ready",
        do=Replace("setdefault()", "first[$2.spec.tenant, $2.id] = $2"),
        caught_by=f"{_DAYS}::test_one_task_resumes_when_a_shared_budget_has_something_left_again",
    ),
)
