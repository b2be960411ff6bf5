"""Bugs of budgets: what is spent, reserved, told and parked."""

from tests.planting import Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

BUDGET_BUGS = (
    Bug(
        "nobody is ever refused for want of a shared budget",
        at="core.budgets:reserve",
        do=Condition("shared_exhaustion()", False),
    ),
    Bug(
        "what is told twice is counted twice",
        at="core.budgets:settle",
        do=Value("spent=", "own.spent + $0"),
    ),
    Bug(
        "an attempt that is over is closed and stays open",
        at="core.budgets:_without_reservation",
        do=Replace("tuple()", "shared.reservations"),
    ),
    Bug(
        "what one who died had paid is forgotten",
        at="core.tasks.attempts:_lease_usage",
        do=Value("return Usage()", "None"),
    ),
    Bug(
        "the same addition counts each time",
        at="core.budgets:add_allowance",
        do=Drop("if requests"),
    ),
    Bug(
        "an agent whose task has a budget is not asked",
        at="services.worker.budget_check:BudgetCheck._check_own",
        do=Condition("_plan", "False and ($1 := '')"),
    ),
)
