"""How long a file may be: one that is longer has a second thing in it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Every Python file in these is measured.
MEASURED = ("src", "tests", "benchmarks")
LINE_LIMIT = 400
# Path below the project -> why it is one thing although it is long.
LONG_FILES: dict[str, str] = {
    "src/longshore/core/events/types.py": "a catalogue: one short class an event type",
}


def too_long(root: Path) -> dict[str, int]:
    """Files below a project with more lines than the limit, and how many they have."""
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for folder in MEASURED
        for path in sorted((root / folder).rglob("*.py"))
    }
    return {path: lines for path, lines in lengths.items() if lines > LINE_LIMIT}


def size_problems_of(root: Path) -> list[str]:
    """Every file that is too long without a reason, as ``path: how long it is``."""
    return [
        f"{path}: {lines} lines, more than {LINE_LIMIT}: look for the second thing in it"
        for path, lines in too_long(root).items()
        if path not in LONG_FILES
    ]


def test_no_file_is_too_long() -> None:
    problems = size_problems_of(ROOT)

    assert not problems, "\n".join(problems)


def test_no_exception_is_kept_for_a_file_that_is_short_again() -> None:
    assert set(LONG_FILES) <= set(too_long(ROOT))


@pytest.mark.parametrize("folder", MEASURED)
def test_a_file_of_one_line_too_many_is_named_with_its_length(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder / "deep").mkdir(parents=True)
    (tmp_path / folder / "deep" / "fits.py").write_text("\n" * LINE_LIMIT)
    (tmp_path / folder / "deep" / "long.py").write_text("\n" * (LINE_LIMIT + 1))

    (problem,) = size_problems_of(tmp_path)

    assert problem.startswith(f"{folder}/deep/long.py: {LINE_LIMIT + 1} lines, more than")


@pytest.mark.parametrize("folder", MEASURED)
def test_what_is_measured_is_there(folder: str) -> None:
    assert any((ROOT / folder).rglob("*.py"))
