"""Limits and isolation: what makes no sense is refused where it is written."""

from datetime import timedelta

import pytest

from longshore.core.definitions.definition import Definition, Isolation, ResourceLimits, RunnerKind


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", timedelta(milliseconds=999)),
        ("memory_bytes", 16 * 1024 * 1024 - 1),
        ("open_files", 15),
        ("file_bytes", 0),
    ],
)
def test_a_limit_under_which_no_child_could_start_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        ResourceLimits(**{field: value})  # type: ignore[arg-type]


def test_the_least_limits_are_accepted() -> None:
    least = ResourceLimits(
        cpu=timedelta(seconds=1),
        memory_bytes=16 * 1024 * 1024,
        open_files=16,
        file_bytes=1,
        processes=1,
    )

    assert least.open_files == 16


def test_a_pool_is_for_functions() -> None:
    pooled = Definition(name="f", runner=RunnerKind.PYTHON, isolation=Isolation.POOL)

    assert pooled.isolation is Isolation.POOL
    with pytest.raises(ValueError, match="pool"):
        Definition(name="c", runner=RunnerKind.COMMAND, isolation=Isolation.POOL)


@pytest.mark.parametrize("more", [{"pty": True}, {"resources": ResourceLimits(open_files=32)}])
def test_a_pool_knows_neither_limits_nor_terminals(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pool"):
        Definition(
            name="f",
            runner=RunnerKind.PYTHON,
            isolation=Isolation.POOL,
            **more,  # type: ignore[arg-type]
        )
