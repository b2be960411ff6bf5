"""Bugs of budgets: what is spent, reserved, told and parked."""

from tests.simulation.bugs_of_tasks import Bug

BUGS_OF_SPENDING = (
    Bug(
        "nobody is ever refused for want of a shared budget",
        "core/budgets.py",
        "    if (why := used_up(account, limit)) is not None:\n        return why\n",
        "    if False:\n        return ''\n",
    ),
    Bug(
        "what is told twice is counted twice",
        "core/budgets.py",
        "    now = replace(held, spent=spent, reserved=reserved)\n",
        "    now = replace(held, spent=held.spent + spent, reserved=reserved)\n",
    ),
    Bug(
        "an attempt that is over is closed and stays open",
        "core/budgets.py",
        "    left = tuple(one for one in account.holdings if one is not held)\n",
        "    left = account.holdings\n",
    ),
    Bug(
        "what one who died had paid is forgotten",
        "core/task/attempts.py",
        "    return lease.usage if lease.usage != e.Usage() else None\n",
        "    return None\n",
    ),
    Bug(
        "the same addition counts each time",
        "core/budgets.py",
        "    if request_id in allowance.requests:\n        return None\n",
        "",
    ),
    Bug(
        "an agent whose task has a budget is not asked",
        "services/worker/purse.py",
        "        if why := exhausted(raised(self._plan.budget, row.allowance), spent):\n",
        "        if False and (why := ''):\n",
    ),
)
