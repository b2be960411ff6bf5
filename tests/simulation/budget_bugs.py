"""Bugs of budgets: spending, reservations, reports and parking."""

from tests.planting import Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

BUDGET_BUGS = (
    Bug(
        "a used-up shared budget refuses no attempt",
        at="core.budgets:reserve",
        do=Condition("shared_exhaustion()", "(exhausted := None)"),
    ),
    Bug(
        "usage that is reported twice is counted twice",
        at="core.budgets:settle",
        do=Replace("ternary", "replace($1, spent=current.spent + $1.spent) if $2 else $3"),
    ),
    Bug(
        "the reservation of an ended attempt stays open",
        at="core.budgets:_without_reservation",
        do=Replace("tuple()", "shared.reservations"),
    ),
    Bug(
        "the usage of a worker that died is forgotten",
        at="core.tasks.task:_lease_usage",
        do=Value("return Usage()", "None"),
    ),
    Bug(
        "the same budget addition counts each time",
        at="core.budgets:add_allowance",
        do=Drop("if requests"),
    ),
    Bug(
        "an agent's own budget is not checked",
        at="services.worker.budget_check:BudgetCheck._check_own",
        do=Condition("exhaustion()", "(exhausted := None)"),
    ),
)
