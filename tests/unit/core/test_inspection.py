"""Values that commands show of an installation."""

from datetime import UTC, datetime
from pathlib import Path

from longshore.core.inspection import Check, CheckStatus, StoreFacts


def test_a_store_that_does_not_exist_is_local_and_holds_nothing() -> None:
    facts = StoreFacts(
        inspected_at=datetime(2030, 1, 1, tzinfo=UTC),
        engine="SQLite 3.51.3",
        engine_path="/lib/sqlite.so",
        engine_trusted=True,
        folder=Path("data"),
        exists=False,
    )

    assert (facts.local, facts.size_bytes, facts.queues, facts.damage) == (True, 0, (), None)


def test_a_check_that_passes_has_no_remedy() -> None:
    check = Check("clock", CheckStatus.OK, "in step")

    assert (check.expected, check.remedy) == (None, None)
