"""Despite a fault at any call site, nothing is lost and nothing happens twice.

Runs each scenario once, with one fault at each call site. All faults at every site:
``python -m tests.aws.every_call_site``.
"""

import ast
from pathlib import Path

import pytest

from tests.aws import call_sites
from tests.aws.every_call_site import run_scenario
from tests.aws.network_faults import rotating_faults
from tests.aws.scenario_coverage import SITES_BY_SCENARIO, UNREACHABLE
from tests.aws.scenario_harness import Scenario
from tests.aws.service_scenarios import SCENARIOS

MISSED_CALLS_ALLOWED = 3  # calls that only follow a fault may come too late to get their own


def test_all_call_sites_of_aws_can_be_found_by_reading_the_code() -> None:
    assert call_sites.misnamed_variables() == []
    assert list(call_sites.vendor_imports()) == []


def test_every_call_site_of_aws_is_reached_by_a_scenario() -> None:
    listed = {site for sites in SITES_BY_SCENARIO.values() for site in sites}

    assert {str(site) for site in call_sites.call_sites()} == listed | set(UNREACHABLE)
    assert not listed & set(UNREACHABLE)
    assert list(SITES_BY_SCENARIO) == [scenario.__name__ for scenario in SCENARIOS]


@pytest.mark.parametrize(
    ("code", "sites"),
    [
        ("async def f(aws: AwsClient): await aws.call('s3', 'get_object')", ["new:f"]),
        ("async def f(): await asyncio.gather(*(self._sqs.hide(n, m) for n in m))", ["new:f"]),
        ("async def f(): return [x async for x in self._table.query(t)]", ["new:f"]),
        (
            "async def f(): await until(lambda: self._config_table.put(i)) or config_table.get(k)",
            ["new:f"] * 2,
        ),
        ("async def f(): await (await aws.client('s3')).get_object(Key=k)", ["new:f"]),
        ("async def f(client): await getattr(client, operation)()", ["new:f"]),
        ("def f(self): self._client.receive_message()", ["new:f"]),
        ("async def f(kept: dict): kept.get(1), kept.items(), self.get(1)", []),
    ],
)
def test_a_new_call_site_of_aws_is_found(code: str, sites: list[str]) -> None:
    reader = call_sites.CallSiteFinder("new")
    reader.visit(ast.parse(code))

    assert [f"{site.module}:{site.function}" for site in reader.sites.values()] == sites
    assert reader.misnamed == []


def test_a_client_whose_variable_has_the_wrong_name_is_reported() -> None:
    reader = call_sites.CallSiteFinder("new")
    reader.visit(
        ast.parse(
            "async def f(away: AwsClient | None):"
            " self._rows = Table(away, name); s3 = await away.client('s3')"
        )
    )

    assert [text.partition(": ")[2] for text in reader.misnamed] == [
        "away is an AwsClient",
        "_rows is a Table",
        "s3 is a client",
    ]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installation that all scenarios share, because creating one is slow."""
    return tmp_path_factory.mktemp("aws")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_ends_as_expected_with_a_fault_at_every_call_site(
    scenario: Scenario, installation: Path
) -> None:
    result = run_scenario(installation, scenario, rotating_faults(SCENARIOS.index(scenario)))

    assert result.problems == []
    assert len(result.injected) >= len(result.calls) - MISSED_CALLS_ALLOWED
    missing = {*SITES_BY_SCENARIO[scenario.__name__]} - {str(site) for site in result.sites}
    if missing:  # a fault prevented the calls
        missing -= {str(site) for site in run_scenario(installation, scenario).sites}
    assert missing == set()
