"""Faults that the tests of budgets must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_CORE = "unit/core/test_budgets.py"
_SHARED = "unit/core/test_budgets_shared.py"
_PARKING = "unit/core/test_task_parking.py"
_WORKER = "unit/services/test_worker_budgets.py"
_TROUBLE = "unit/services/test_worker_budgets_trouble.py"
_ACCOUNTING = "unit/services/test_accounting.py"
_TASKS = "unit/services/test_budgeting.py"
_JOBS = "unit/services/test_budgeting_jobs.py"
_DAYS = "unit/services/test_budgeting_days.py"

_fault = partial(Fault, part=Part.BUDGETS)
_in_core = partial(_fault, file="core/budgets.py")
_in_purse = partial(_fault, file="services/worker/purse.py")
_in_accounting = partial(_fault, file="services/accounting.py")
_in_budgeting = partial(_fault, file="services/budgeting.py")

BUDGET_FAULTS = (
    _in_core(
        name="a budget of which nothing is left is not used up",
        old="spent.cost_usd >= budget.usd",
        new="spent.cost_usd > budget.usd",
        caught_by=f"{_CORE}::TestExhausted::"
        "test_a_budget_is_used_up_as_soon_as_nothing_is_left_of_a_part_of_it",
    ),
    _in_core(
        name="what comes from a cache costs no tokens",
        old="usage.input_tokens + usage.output_tokens + usage.cache_read_tokens",
        new="usage.input_tokens + usage.output_tokens",
        caught_by=f"{_CORE}::TestExhausted::test_all_tokens_count_those_from_a_cache_too",
    ),
    _in_core(
        name="a request adds each time that it comes",
        old="    if request_id in allowance.requests:\n        return None\n",
        new="",
        caught_by=f"{_CORE}::TestAllowance::test_additions_add_up_and_each_request_counts_once",
    ),
    _in_core(
        name="what others have reserved is there for everybody",
        old="    why = exhausted(whole, account.taken)\n",
        new="    why = exhausted(whole, account.spent)\n",
        caught_by=f"{_CORE}::TestReserving::test_what_one_has_reserved_is_gone_for_the_others",
    ),
    _in_core(
        name="who asks for several at once is granted each",
        old="own = Holding(task_id=task_id, attempt=attempt, spent=spent, reserved=reserved)",
        new="own = Holding(task_id=task_id, attempt=attempt, spent=spent, reserved=Usage())",
        caught_by=f"{_CORE}::TestReserving::"
        "test_who_asks_for_several_at_once_is_not_granted_more_than_there_is",
    ),
    _in_core(
        name="an attempt that is over may go on spending",
        old="    if held is None and (spent != Usage() or _later(account, task_id, attempt)):\n"
        "        raise Stale\n",
        new="",
        caught_by=f"{_TROUBLE}::"
        "test_an_attempt_that_others_have_ended_spends_nothing_more_and_says_nothing",
    ),
    _in_core(
        name="what an attempt that is over had told is forgotten",
        old="replace(account, closed=account.closed + spent, holdings=left)",
        new="replace(account, holdings=left)",
        caught_by=f"{_SHARED}::test_however_many_spend_at_once_and_die_each_answer_is_counted_once",
    ),
    _in_core(
        name="the day begins where the clock stands",
        old='f"day/{at.astimezone(UTC):%Y-%m-%d}"',
        new='f"day/{at:%Y-%m-%d}"',
        caught_by=f"{_CORE}::TestNames::test_each_job_and_each_day_has_an_account",
    ),
    _fault(
        name="what was allowed more before it was parked rests for ever",
        file="core/task/parking.py",
        old="if command.scope in OWN_SCOPES and row.allowance != command.allowance:",
        new="if False:",
        caught_by=f"{_WORKER}::"
        "test_more_that_is_allowed_in_the_moment_in_which_a_task_is_parked_is_not_lost",
    ),
    _fault(
        name="a day goes on before it is over",
        file="core/task/parking.py",
        old="if command.due and (row.due_at is None or step.now < to_tick(row.due_at)):",
        new="if command.due and row.due_at is None:",
        caught_by=f"{_PARKING}::TestUnpark::"
        "test_what_goes_on_by_itself_does_so_when_its_time_has_come_and_not_before",
    ),
    _in_purse(
        name="what earlier attempts have spent does not count",
        old="spent = row.usage + asked.spent + on_the_way",
        new="spent = asked.spent + on_the_way",
        caught_by=f"{_WORKER}::test_what_earlier_attempts_have_spent_counts_for_the_task",
    ),
    _in_purse(
        name="a step pays for those before it",
        old="spent = asked.spent - self._steps[asked.step] + on_the_way",
        new="spent = asked.spent + on_the_way",
        caught_by=f"{_WORKER}::test_a_step_has_a_budget_of_its_own",
    ),
    _in_purse(
        name="questions on their way cost nothing",
        old="                self._asked[asked.number] = asked.wanted\n",
        new="                pass\n",
        caught_by=f"{_WORKER}::test_several_questions_at_once_are_all_counted",
    ),
    _in_purse(
        name="an answer is settled in every account of the attempt",
        old="for name, one in self._shares.items() if number in one.asked}",
        new="for name, one in self._shares.items() if one.asked.setdefault(number, NOTHING)}",
        caught_by=f"{_WORKER}::"
        "test_an_attempt_that_spans_midnight_spends_in_two_days_and_is_counted_once",
    ),
    _in_purse(
        name="nobody looks whether the job was allowed more",
        old="        await self._look_at_job()  # somebody may have added something meanwhile\n",
        new="",
        caught_by=f"{_WORKER}::test_more_for_the_job_is_heard_of_before_a_task_is_parked",
    ),
    _in_purse(
        name="what an attempt has reserved outlives it",
        old="await self._accounting.close(self._spender.row, name, spent=share.spent)\n",
        new="pass\n",
        caught_by=f"{_TROUBLE}::test_what_is_drained_is_released_and_what_it_had_reserved_is_free",
    ),
    _in_purse(
        name="more is spent before it is written down what was",
        old="        while not self._known and not self._spender.ends:\n",
        new="        while False:\n",
        caught_by=f"{_TROUBLE}::test_nothing_more_is_spent_before_it_is_written_down_what_was",
    ),
    _in_accounting(
        name="a conflict is taken for done",
        old="            except VersionConflict:\n                continue\n",
        new="            except VersionConflict:\n                pass\n",
        caught_by=f"{_ACCOUNTING}::test_of_many_at_once_each_counts_and_none_twice",
    ),
    _in_accounting(
        name="the dead keep what they had reserved",
        old="if isinstance(refused, str) and await self._let_the_dead_go(tenant, name):",
        new="if False:",
        caught_by=f"{_ACCOUNTING}::test_what_the_dead_had_reserved_keeps_nobody_from_it",
    ),
    _in_accounting(
        name="what the dead had reserved keeps those who rest from going on",
        old="if why is not None and await self._let_the_dead_go(tenant, name):",
        new="if False:",
        caught_by=f"{_DAYS}::test_what_the_dead_had_reserved_lets_another_go_on",
    ),
    _in_accounting(
        name="the living are taken for dead",
        old="dead = [one for one in account.holdings if (one.task_id, one.attempt) not in holders]",
        new="dead = account.holdings",
        caught_by=f"{_ACCOUNTING}::test_the_living_are_left_alone_and_who_is_refused_has_nothing",
    ),
    _in_accounting(
        name="the next attempt of a task keeps what the first had",
        old="holders = {(row.id, row.attempt) for row in rows if row.lease is not None}",
        new="holders = {(row.id, 1) for row in rows if row.lease is not None}",
        caught_by=f"{_ACCOUNTING}::test_what_the_next_attempt_of_a_task_holds_is_not_the_deads",
    ),
    _in_budgeting(
        name="an addition whose answer was lost is refused",
        old="            if row and row.allowance and request_id in row.allowance.requests:\n"
        "                return row\n",
        new="",
        caught_by=f"{_TASKS}::test_an_addition_whose_answer_was_lost_counts_once",
    ),
    _in_budgeting(
        name="of the parked tasks only the first page goes on",
        old="            if (cursor := page.cursor) is None:\n                return\n",
        new="            return\n",
        caught_by=f"{_JOBS}::test_more_than_a_page_of_tasks_goes_on",
    ),
    _in_budgeting(
        name="many that rest hide one that may go on",
        old="            limit *= 2\n",
        new="            break\n",
        caught_by=f"{_DAYS}::test_many_that_rest_for_something_else_do_not_hide_one_that_may_go_on",
    ),
    _in_budgeting(
        name="what is added to the day lets nothing go on",
        old="            await self._unpark(row, c.Unpark(scope=Scope.DAY, by=by))\n",
        new="            pass\n",
        caught_by=f"{_DAYS}::test_its_tasks_that_lack_it_go_on_and_the_same_request_adds_once",
    ),
    _in_budgeting(
        name="all go on although only a little is left",
        old="                first.setdefault((row.spec.tenant, name), row)\n",
        new="                first[(row.spec.tenant, row.id)] = row\n",
        caught_by=f"{_DAYS}::test_of_a_shared_budget_of_which_something_is_left_again_one_goes_on",
    ),
)
