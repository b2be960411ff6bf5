"""The factor by which a cost grows, and the page of the scale benchmark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import COSTS, SERIES, Point, growth, markdown, read_points


def _points(*costs: float, series: str = "finished") -> list[Point]:
    return [
        Point(series=series, value=10 ** (3 + index), costs={"cpu_ms": cost})
        for index, cost in enumerate(costs)
    ]


@pytest.mark.parametrize(
    ("costs", "factor"),
    [((2.0, 2.0, 2.0), 1.0), ((1.0, 10.0, 100.0), 10.0), ((8.0, 4.0, 2.0), 0.5)],
)
def test_growth_is_the_factor_for_ten_times_as_many(
    costs: tuple[float, ...], factor: float
) -> None:
    assert growth(_points(*costs), "cpu_ms") == pytest.approx(factor)


def test_growth_needs_two_points() -> None:
    assert growth(_points(1.0), "cpu_ms") is None
    assert growth(_points(1.0, 2.0), "syncs") is None


def test_the_page_has_a_table_for_each_series_with_its_growth() -> None:
    points = [*_points(1.0, 2.0), Point(series="finished", value=10**6, costs={})]

    page = markdown({"cores": "2"}, [*points, *_points(3.0, 3.0, series="slots")])

    assert "- cores: 2" in page
    assert f"## By {SERIES['finished']}" in page
    assert f"## By {SERIES['queues']}" not in page
    assert "| tenfold | × 2.00 |" in page
    assert "| 1,000,000: not reached in time |" in page


def test_points_are_read_from_their_lines() -> None:
    lines = [
        json.dumps({"machine": {"cores": "2"}}),
        json.dumps({"series": "slots", "value": 4, "costs": dict.fromkeys(COSTS, 1.0)}),
    ]

    facts, points = read_points(lines)

    assert facts == {"cores": "2"}
    assert points == [Point(series="slots", value=4, costs=dict.fromkeys(COSTS, 1.0))]


def test_the_statements_of_a_program_are_counted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, apsw\n"
        "connection = apsw.Connection(':memory:')\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    connection.execute('select 1').fetchall()\n"
    )
    count = tmp_path / "count"

    module = [sys.executable, "-m", "benchmarks.counted_program", str(count)]
    subprocess.run([*module, str(program), "7"], check=True, cwd=Path(__file__).parents[2])

    assert count.read_text() == "7"
