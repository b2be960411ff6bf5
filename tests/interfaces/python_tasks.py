"""Task functions as a user's module has them."""

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict

import longshore


class Page(BaseModel):
    """A model that takes nothing for something else."""

    model_config = ConfigDict(strict=True)

    url: str
    fetched_at: datetime


@dataclass
class Total:
    pages: int
    by_site: dict[str, int]


@longshore.task
def fetch(url: str, depth: int = 1) -> list[str]:
    """Fetch the pages of a site.

    More words.
    """
    return [f"{url}/{page}" for page in range(depth)]


@longshore.task(max_attempts=5, timeout="90s", queue="counting", priority="high")
async def count(pages: list[str]) -> int:
    return len(pages)


@longshore.task
def total(sites: dict[str, list[str]]) -> Total:
    return Total(sum(map(len, sites.values())), {site: len(p) for site, p in sites.items()})


@longshore.task
def visit(page: Page, *tags: str, **weights: float) -> Page:
    return page


@longshore.task
def anything(value):
    return value


class Shop:
    @staticmethod
    @longshore.task
    def sell(item: str) -> str:
        return item


async def _later() -> int:
    return 1


renamed = longshore.task(_later)
