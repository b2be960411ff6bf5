"""Whatever happens to a call, wherever it is made, nothing is lost and nothing happens twice.

One turn of each story, in which each call site meets one trouble. All that each of them can meet:
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

MISSED_CALLS_ALLOWED = 3  # calls that only follow a trouble may be made when their turn is over


def test_the_places_from_which_aws_is_asked_can_all_be_found_by_reading() -> None:
    assert call_sites.misnamed_variables() == []
    assert list(call_sites.vendor_imports()) == []


def test_every_place_from_which_aws_is_asked_is_reached_by_a_story() -> None:
    known = {place for places in SITES_BY_SCENARIO.values() for place in places}

    assert {str(place) for place in call_sites.call_sites()} == known | set(UNREACHABLE)
    assert not known & set(UNREACHABLE)
    assert list(SITES_BY_SCENARIO) == [story.__name__ for story in SCENARIOS]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("async def f(aws: AwsClient): await aws.call('s3', 'get_object')", ["new:f"]),
        ("async def f(): await asyncio.gather(*(self._sqs.hide(n, m) for n in m))", ["new:f"]),
        ("async def f(): return [x async for x in self._tables.query(t)]", ["new:f"]),
        (
            "async def f(): await until(lambda: self._config_table.put(i)) or config_table.get(k)",
            ["new:f"] * 2,
        ),
        ("async def f(): await (await aws.client('s3')).get_object(Key=k)", ["new:f"]),
        ("async def f(client): await getattr(client, operation)()", ["new:f"]),
        ("def f(self): self._client.receive_message()", ["new:f"]),
        ("async def f(client): await client.generate_presigned_url()", []),
        ("async def f(kept: dict): kept.get(1), kept.items(), self.get(1)", []),
    ],
)
def test_a_new_place_from_which_aws_is_asked_is_found(code: str, found: list[str]) -> None:
    reader = call_sites.CallSiteFinder("new")
    reader.visit(ast.parse(code))

    assert [f"{place.module}:{place.function}" for place in reader.sites.values()] == found
    assert reader.misnamed == []


def test_a_way_out_must_be_called_what_it_is() -> None:
    reader = call_sites.CallSiteFinder("new")
    reader.visit(
        ast.parse(
            "async def f(away: AwsClient | None):"
            " self._rows = TableReader(away, clock); s3 = await away.client('s3')"
        )
    )

    assert [text.partition(": ")[2] for text in reader.misnamed] == [
        "away is an AwsClient",
        "_rows is a TableReader",
        "s3 is a client",
    ]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all stories: it takes long to make."""
    return tmp_path_factory.mktemp("aws")


@pytest.mark.parametrize("story", SCENARIOS, ids=lambda story: story.__name__)
def test_a_story_ends_as_it_should_although_every_call_site_meets_trouble(
    story: Scenario, installation: Path
) -> None:
    told = run_scenario(installation, story, rotating_faults(SCENARIOS.index(story)))

    assert told.problems == []
    assert len(told.injected) >= len(told.calls) - MISSED_CALLS_ALLOWED
    missing = {*SITES_BY_SCENARIO[story.__name__]} - {str(place) for place in told.sites}
    if missing:  # a trouble was in the way
        missing -= {str(place) for place in run_scenario(installation, story).sites}
    assert missing == set()
