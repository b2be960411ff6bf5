"""Bugs of budgets: what is spent, reserved, told and parked."""

from tests.planting import Condition, Drop, Replace, Value
from tests.simulation.bugs_of_tasks import Bug

BUGS_OF_SPENDING = (
    Bug(
        "nobody is ever refused for want of a shared budget",
        at="core.budgets:reserve",
        do=Condition("used_up()", False),
    ),
    Bug(
        "what is told twice is counted twice",
        at="core.budgets:settle",
        do=Value("spent=", "held.spent + $0"),
    ),
    Bug(
        "an attempt that is over is closed and stays open",
        at="core.budgets:_without",
        do=Replace("tuple()", "account.holdings"),
    ),
    Bug(
        "what one who died had paid is forgotten",
        at="core.task.attempts:_spent",
        do=Value("return Usage()", "None"),
    ),
    Bug(
        "the same addition counts each time",
        at="core.budgets:allowed_more",
        do=Drop("if requests"),
    ),
    Bug(
        "an agent whose task has a budget is not asked",
        at="services.worker.purse:Purse._used_up",
        do=Condition("_plan", "False and ($1 := '')"),
    ),
)
