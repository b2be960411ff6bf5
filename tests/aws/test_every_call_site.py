"""Whatever happens to a call, wherever it is made, nothing is lost and nothing happens twice.

One turn of each story, in which each call site meets one trouble. All that each of them can meet:
``python -m tests.aws.every_call_site``.
"""

from pathlib import Path

import pytest

from tests.aws.call_stories import STORIES, Story
from tests.aws.every_call_site import tell
from tests.aws.wire_trouble import Trouble, any_of

LEAST_SITES = 18


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
    assert len(told.met) >= LEAST_SITES
    assert len(set(told.met.values())) >= len(Trouble) - 2
