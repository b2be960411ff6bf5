"""Each error of each contract, once at each place where a service calls a port.

The services survive, or fail the one task; the worker continues with the next task. The whole
of it, each single call, is ``python -m tests.errors_everywhere``.
"""

import inspect

import pytest

from longshore import errors
from longshore.errors import LongshoreError
from tests.errors_everywhere.kinds import ErrorKind, errors_in_contract, kinds_of
from tests.errors_everywhere.matrix import (
    Depth,
    baseline,
    reached_sites,
    run_trial,
    scenario_variants,
    summarise,
    trials,
)
from tests.errors_everywhere.scenarios import SCENARIOS, Scenario
from tests.errors_everywhere.sites import PORTS, all_sites, methods_of

# Only backends with a task source of their own; the simulator makes these calls fail.
WITHOUT_BUS = {("dispatcher.py", "ledger.unrecorded_ends")}
SITES = {site for site in all_sites() if (site.file, site.method) not in WITHOUT_BUS}
KINDS = sorted({kind for site in SITES for kind in kinds_of(site.method)})


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_error_at_any_call_ends_no_worker_and_costs_at_most_the_one_task(
    kind: ErrorKind,
) -> None:
    chosen = [case for case in trials(Depth.SITES) if case.fault.kind == kind]

    summary = summarise((case, run_trial(case)) for case in chosen)

    assert summary.runs == summary.errors[str(kind)] > 0
    assert not summary.failures, "\n".join(summary.failures)


def test_the_scenarios_reach_every_port_call_of_a_service() -> None:
    assert not SITES - reached_sites()


def test_every_place_is_tried_with_every_error_of_its_contract() -> None:
    options = {(site, kind) for site in SITES for kind in kinds_of(site.method)}
    assert {(case.fault.site, case.fault.kind) for case in trials(Depth.SITES)} == options


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_is_deterministic(scenario: Scenario) -> None:
    first = baseline(scenario, atomic=False)
    baseline.cache_clear()
    second = baseline(scenario, atomic=False)

    assert first.ends == second.ends
    assert first.calls == second.calls


def test_every_error_that_a_contract_names_is_one_that_is_raised_here() -> None:
    existing = {
        name
        for name, item in vars(errors).items()
        if inspect.isclass(item) and issubclass(item, LongshoreError)
    }
    for port in PORTS:
        for method in methods_of(port):
            for name in errors_in_contract(port, method):
                assert name in existing
                assert ErrorKind(name).error()


def test_scenarios_run_on_ledgers_of_both_kinds() -> None:
    assert {atomic for _, atomic in scenario_variants()} == {False, True}
