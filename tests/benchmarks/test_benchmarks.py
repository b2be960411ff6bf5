"""The benchmarks run and report their figures; counts are checked, times are not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import QUICK

ROOT = Path(__file__).parents[2]
CHEAP = ("transitions", "enqueue", "noops", "fsyncs")
COMPARED = [
    *("transitions.1", "transitions.64", "transitions.64_held", "transitions.256"),
    *("enqueue.1", "enqueue.64", "enqueue.bulk"),
    *("noops.3", "noops.64", "noops.64_one_job"),
]


def _output(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads(_output("--json", *(f"--only={name}" for name in CHEAP)))


def test_the_report_names_the_machine(report: dict[str, Any]) -> None:
    assert {"cores", "file_system", "python", "sqlite"} <= set(report["machine"])


@pytest.mark.parametrize("name", COMPARED)
def test_a_rate_comes_with_its_floor_and_its_spread(report: dict[str, Any], name: str) -> None:
    figure = report["figures"][name]

    assert figure["floor"] > 0
    assert figure["percent"] > 0
    assert figure["spread"][0] <= figure["value"] <= figure["spread"][1]


@pytest.mark.parametrize("name", ["transitions.64", "enqueue.bulk_cpu"])
def test_a_figure_with_a_target_reports_whether_it_is_met(
    report: dict[str, Any], name: str
) -> None:
    assert report["figures"][name]["target"]["result"] in {"PASS", "below", "above"}


def test_a_lone_caller_pays_at_least_one_sync_a_transition(report: dict[str, Any]) -> None:
    assert report["figures"]["fsyncs.transition_1"]["value"] >= 1


def test_many_callers_share_their_syncs(report: dict[str, Any]) -> None:
    assert report["figures"]["transitions.64"]["details"]["per_commit"] > 1
    assert report["figures"]["fsyncs.transition_64"]["value"] < 1


def test_the_table_has_a_line_for_each_figure_and_one_for_the_machine() -> None:
    lines = _output("--only=transitions").splitlines()

    assert [line.split()[0] for line in lines if line.startswith("transitions.")] == COMPARED[:4]
    assert "cores" in lines[-1]
    assert "sqlite" in lines[-1]


def test_memory_is_reported_for_a_worker_after_its_tasks_and_for_its_child_processes() -> None:
    figures = json.loads(_output("--json", "--only=memory"))["figures"]

    parts = ("worker", "fork_server", "reaper", "fork_server_forks", "reaper_forks")
    assert list(figures) == [f"memory.{part}" for part in parts]
    worker = figures["memory.worker"]
    assert worker["target"]["result"] in {"PASS", "above"}
    assert worker["details"]["tasks"] == 20 * QUICK.noops
    # The worker, its fork server, and at least one reaper with a member of the pool.
    assert worker["details"]["processes"] >= 4


def test_an_agent_is_compared_with_the_bare_sdk_and_many_of_them_with_their_ceiling() -> None:
    figures = json.loads(_output("--json", "--only=agents"))["figures"]

    parts = ("wall", "cpu", "wall_fresh", "memory", "memory_per_agent")
    assert list(figures) == [f"agents.{part}" for part in parts]
    assert figures["agents.wall"]["floor"] > 0
    assert figures["agents.cpu"]["floor"] > 0
    for name in ("agents.wall", "agents.cpu", "agents.memory", "agents.memory_per_agent"):
        assert figures[name]["target"]["result"] in {"PASS", "above"}
    memory = figures["agents.memory"]["details"]
    assert memory["tasks"] > memory["fitting_agents"] >= memory["most_at_once"] > 0
