"""Whatever happens to a call, wherever it is made, nothing is lost and nothing happens twice.

One turn of each story, in which each call site meets one trouble. All that each of them can meet:
``python -m tests.aws.every_call_site``.
"""

import ast
from pathlib import Path

import pytest

from tests.aws import call_sites
from tests.aws.call_reached import EXCUSED, REACHED
from tests.aws.call_stories import STORIES
from tests.aws.call_theatre import Story
from tests.aws.every_call_site import tell
from tests.aws.wire_trouble import any_of

LEFT_ALONE = 3  # calls that only follow a trouble may be made when their turn is over


def test_the_places_from_which_aws_is_asked_can_all_be_found_by_reading() -> None:
    assert call_sites.strangely_named() == []
    assert list(call_sites.other_ways()) == []


def test_every_place_from_which_aws_is_asked_is_reached_by_a_story() -> None:
    known = {place for places in REACHED.values() for place in places}

    assert {str(place) for place in call_sites.places()} == known | set(EXCUSED)
    assert not known & set(EXCUSED)
    assert list(REACHED) == [story.__name__ for story in STORIES]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("async def f(aws: Aws): await aws.call('s3', 'get_object')", ["new:f"]),
        ("async def f(): await asyncio.gather(*(self._sqs.hide(n, m) for n in m))", ["new:f"]),
        ("async def f(): return [x async for x in self._tables.query(t)]", ["new:f"]),
        ("async def f(): await until(lambda: self._house.put(i)) or house.get(k)", ["new:f"] * 2),
        ("async def f(): await (await aws.client('s3')).get_object(Key=k)", ["new:f"]),
        ("async def f(client): await getattr(client, operation)()", ["new:f"]),
        ("def f(self): self._client.receive_message()", ["new:f"]),
        ("async def f(client): await client.generate_presigned_url()", []),
        ("async def f(kept: dict): kept.get(1), kept.items(), self.get(1)", []),
    ],
)
def test_a_new_place_from_which_aws_is_asked_is_found(code: str, found: list[str]) -> None:
    reader = call_sites.Reader("new")
    reader.visit(ast.parse(code))

    assert [f"{place.module}:{place.function}" for place in reader.found.values()] == found
    assert reader.strange == []


def test_a_way_out_must_be_called_what_it_is() -> None:
    reader = call_sites.Reader("new")
    reader.visit(
        ast.parse(
            "async def f(away: Aws | None):"
            " self._rows = Tables(away, clock); s3 = await away.client('s3')"
        )
    )

    assert [text.partition(": ")[2] for text in reader.strange] == [
        "away is an Aws",
        "_rows is a Tables",
        "s3 is a client",
    ]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all stories: it takes long to make."""
    return tmp_path_factory.mktemp("aws")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_ends_as_it_should_although_every_call_site_meets_trouble(
    story: Story, installation: Path
) -> None:
    told = tell(installation, story, any_of(STORIES.index(story)))

    assert told.wrong == []
    assert len(told.met) >= len(told.made) - LEFT_ALONE
    missing = {*REACHED[story.__name__]} - {str(place) for place in told.passed}
    if missing:  # a trouble was in the way
        missing -= {str(place) for place in tell(installation, story).passed}
    assert missing == set()
