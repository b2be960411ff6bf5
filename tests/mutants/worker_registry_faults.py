"""Faults that the tests of who is at work must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Drop, Replace, Value

_WORKER_REGISTRY = "execution/test_worker_registry.py"

_fault = partial(Fault, part=Part.WORKER_REGISTRY)

WORKER_REGISTRY_FAULTS = (
    _fault(
        name="a live worker counts as dead",
        at="execution.host.registry:FileWorkerRegistry.is_dead",
        do=Value("return", "True", nth=3),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_a_worker_is_here_until_its_process_ends_and_gone_from_then_on",
    ),
    _fault(
        name="a worker that was never here is gone",
        at="execution.host.registry:FileWorkerRegistry.is_dead",
        do=Value("return", "True", nth=2),
        caught_by=f"{_WORKER_REGISTRY}::test_nothing_is_known_of_a_worker_that_was_never_here",
    ),
    _fault(
        name="one s own worker is gone",
        at="execution.host.registry:FileWorkerRegistry.is_dead",
        do=Replace("if _locks", ("if $1:\n    return True")),
        caught_by=f"{_WORKER_REGISTRY}::test_one_s_own_worker_is_here",
    ),
    _fault(
        name="children of the dead live on",
        at="execution.host.registry:FileWorkerRegistry.reap",
        do=Drop("_kill_group()"),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_clearing_kills_the_children_of_a_dead_worker_and_their_children",
    ),
    _fault(
        name="only a group is killed and not the session",
        at="execution.host.process_table:group_members",
        do=Replace("in session", "$1 == group"),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_clearing_kills_those_of_a_child_s_session_who_have_a_group_of_their_own",
    ),
    _fault(
        name="children that were forgotten are killed",
        at="execution.host.registry:FileWorkerRegistry.reap",
        do=Drop("pop()"),
        caught_by=f"{_WORKER_REGISTRY}::test_a_child_that_was_forgotten_is_left_alone",
    ),
    _fault(
        name="a process that reuses a child's id is killed",
        at="execution.host.registry:FileWorkerRegistry.reap",
        do=Argument("_kill_group()", "start_time", None),
        caught_by=f"{_WORKER_REGISTRY}::test_a_number_that_has_gone_to_somebody_else_is_left_alone",
    ),
    _fault(
        name="many fill one role",
        at="execution.host.registry:FileWorkerRegistry.acquire_role",
        do=Value("return False", "True"),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_one_process_of_the_machine_fills_a_role_and_the_next_when_it_ends",
    ),
    _fault(
        name="a role is never given up",
        at="execution.host.registry:FileWorkerRegistry.close",
        do=Replace("close()", "self._role_locks.popitem()"),
        caught_by=f"{_WORKER_REGISTRY}::test_a_role_that_is_given_up_can_be_filled_by_another",
    ),
)
