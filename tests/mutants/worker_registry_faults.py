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
        "test_a_worker_is_alive_until_its_process_ends_and_dead_from_then_on",
    ),
    _fault(
        name="a worker that was never here is gone",
        at="execution.host.registry:FileWorkerRegistry.is_dead",
        do=Value("return", "True", nth=2),
        caught_by=f"{_WORKER_REGISTRY}::test_an_unregistered_worker_is_neither_alive_nor_dead",
    ),
    _fault(
        name="one s own worker is gone",
        at="execution.host.registry:FileWorkerRegistry.is_dead",
        do=Replace("if _workers", ("if $1:\n    return True")),
        caught_by=f"{_WORKER_REGISTRY}::test_a_process_s_own_worker_is_alive",
    ),
    _fault(
        name="children of the dead live on",
        at="execution.host.registry:FileWorkerRegistry.reap",
        do=Drop("_kill_group()"),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_reaping_kills_the_children_of_a_dead_worker_and_their_children",
    ),
    _fault(
        name="only a group is killed and not the session",
        at="execution.process_table:group_members",
        do=Replace("in session", "$1 == group"),
        caught_by=f"{_WORKER_REGISTRY}::"
        "test_reaping_kills_processes_of_a_child_s_session_in_other_groups",
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
        caught_by=f"{_WORKER_REGISTRY}::test_a_reused_process_id_is_not_killed",
    ),
    _fault(
        name="a new worker does not change the list of workers",
        at="execution.host.registry:FileWorkerRegistry.dead_workers",
        do=Replace("st_mtime_ns", "0"),
        caught_by=f"{_WORKER_REGISTRY}::test_the_process_with_a_role_finds_each_dead_worker_"
        "and_lists_the_folder_only_if_it_changed",
    ),
    _fault(
        name="many fill one role",
        at="execution.host.registry:FileWorkerRegistry.acquire_role",
        do=Value("return False", "True"),
        caught_by=f"{_WORKER_REGISTRY}::test_one_process_of_the_machine_has_a_role_until_it_ends",
    ),
    _fault(
        name="a role is never given up",
        at="execution.host.registry:FileWorkerRegistry.close",
        do=Replace("close()", "files.popitem()"),
        caught_by=f"{_WORKER_REGISTRY}::test_a_released_role_can_be_acquired_by_another_process",
    ),
)
