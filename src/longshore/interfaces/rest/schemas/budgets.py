"""Budgets."""

from __future__ import annotations

from pydantic import Field

from longshore.core.budgets import MOST
from longshore.interfaces.rest.schemas.base import Asked, Shape


class BudgetDocument(Shape):
    """Amounts; null: that is not limited."""

    usd: float | None
    tokens: int | None
    minutes: float | None


class SpentDocument(Shape):
    """What was spent."""

    usd: float
    tokens: int
    minutes: float


class StandingDocument(Shape):
    """A budget, and what is spent of it."""

    limit: BudgetDocument = Field(description="With what operators have added.")
    added: BudgetDocument = Field(description="Of the limit, by operators; null: nothing.")
    spent: SpentDocument
    reserved: SpentDocument = Field(description="For answers that are on their way.")


class AddBudgetDocument(Asked):
    """How much more may be spent."""

    usd: float | None = Field(default=None, gt=0, le=MOST, examples=[5])
    tokens: int | None = Field(default=None, gt=0, le=MOST)
    minutes: float | None = Field(default=None, gt=0, le=MOST)
