"""The examples of agents do what their page says: offline, by the real commands, SDK and agent.

The page is run once, as a reader would, with the service of its first lines at work; then what came
of it is looked at while that service still runs.
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from longshore.core.agents.transcripts import session_id
from longshore.core.ids import job_id_of
from longshore.core.tasks.states import TaskState
from longshore.settings import load_settings
from longshore.wiring.services import open_services
from tests.agents.harness import TENANT, AgentHarness, scenario
from tests.docs import test_examples as pages
from verification.messages_api import MessagesApi

# The first test has the whole page before it.
pytestmark = pytest.mark.timeout(300)

EXAMPLES = pages.ROOT / "examples" / "agents"
STORE, REVIEW, NOTICE = (job_id_of(TENANT, name) for name in ("store", "review", "notice"))


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the examples, after all that its page says was done there."""
    folder = tmp_path_factory.mktemp("examples") / "agents"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("till", ".longshore"))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        defaults = pages.environment_in(folder)
        # Loaded once, not by each of eight agents.
        patch.setattr(
            pages, "environment_in", lambda _: {**defaults, "LONGSHORE_AGENT_PRELOAD": "1"}
        )
        port = str(free_port())
        for block in pages.blocks_of(EXAMPLES / "README.md"):
            text = block.text.replace("8421", port).replace("up &", f"up --port {port} &")
            reported = pages.Block(language=block.language, text=text, line=block.line)
            try:
                pages.run_block(reported, folder, stack)
            except AssertionError as error:
                error.add_note(f"examples/agents/README.md, line {block.line}")
                raise
        yield folder


def free_port() -> int:
    with socket.socket() as match:
        match.bind(("127.0.0.1", 0))
        port: int = match.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def open_job(folder: Path, job_id: str) -> AsyncIterator[AgentHarness]:
    async with open_services(load_settings({"data_dir": str(folder / ".longshore")})) as services:
        harness = AgentHarness(services, MessagesApi(), folder)
        harness.job_id = job_id
        yield harness


@scenario
async def test_results_of_the_five_go_from_one_to_the_next(examples_folder: Path) -> None:
    async with open_job(examples_folder, STORE) as harness:
        results = {
            key: await harness.result(key)
            for key in ("scrape", "competitors", "colours", "fonts", "result")
        }

        assert results["scrape"]["name"] == "Harbour Knits"
        assert len(results["competitors"]["competitors"]) == 3
        assert all(colour in results["result"] for colour in results["colours"]["tags"])
        assert all(f'"{font}"' in results["result"] for font in results["fonts"].values())
        for key, result in results.items():
            row, _ = await harness.history(key)
            assert (row.state, row.attempt, row.usage.turns) == (TaskState.COMPLETED, 1, 1)
            assert json.loads(await harness.file("artifacts/task-result.json", key=key)) == result
            assert b"task: completed after" in await harness.file("logs/summary.log", key=key)
            (step,) = await harness.trace(key=key)
            assert step["end"]["how"] == "completed"
            assert step["sessionId"] == session_id(row.id, "task")


@scenario
async def test_the_review_leaves_findings_and_a_patch_and_the_repository_as_it_was(
    examples_folder: Path,
) -> None:
    async with open_job(examples_folder, REVIEW) as harness:
        match = json.loads(await harness.file("artifacts/task-result.json", key="review"))
        patch = await harness.file("artifacts/changes.patch", key="review")
        reviewed, fixed = await harness.trace(key="review")

        assert [(item["file"], item["line"]) for item in match["findings"]] == [("till.py", 6)]
        assert await harness.result("review") == "The discount is now taken as per cent."
        assert b"+    return sum(prices) * (1 - discount_percent / 100)\n" in patch
        assert patch.count(b"\n-    ") == 1
        assert [(tool["name"], tool["outcome"]) for tool in reviewed["tools"]] == [
            ("Bash", "failed"),
            ("Read", "ok"),
            ("Grep", "ok"),
            ("StructuredOutput", "ok"),
        ]
        assert [tool["name"] for tool in fixed["tools"]] == ["Read", "Edit"]
        assert not harness.files("review").exists()
    till = (examples_folder / "till" / "till.py").read_bytes()
    assert till == (EXAMPLES / "sample" / "till.py").read_bytes()
    # It is a patch that git takes.
    subprocess.run(
        ["git", "apply", "--check", "-"], cwd=examples_folder / "till", input=patch, check=True
    )


def test_the_trace_of_two_steps_is_a_timeline_with_figures(examples_folder: Path) -> None:
    shown = pages.run(f"longshore trace {REVIEW}", examples_folder).stdout

    assert re.search(r"^review +completed\n", shown, re.MULTILINE)
    assert "did       3 turns, 4 tools (1 failed)\n" in shown
    assert "tokens    7,400 in (60% from the cache), 190 out\n" in shown
    assert re.search(r" 2  No shell here\. I read the file\. +2\.3k +91% +60 +\$0\.0024\n", shown)
    assert re.search(r"s +Read  till\.py +\d+ ms\n", shown)
    assert 'result  {"findings": [{"file": "till.py"' in shown
    assert re.search(r"^fix +completed\n", shown, re.MULTILINE)
    assert re.search(r"^in all +2 steps, [\d.]+ s, \$0\.0305\n\Z", shown, re.MULTILINE)


@scenario
async def test_a_result_that_was_sent_back_continues_its_conversation_until_approval(
    examples_folder: Path,
) -> None:
    async with open_job(examples_folder, NOTICE) as harness:
        row = await harness.row("notice")
        history = await harness.services.backend.events.history(TENANT, f"TASK#{row.id}")
        (first,), (second,) = [await harness.trace(key="notice", attempt=item) for item in (1, 2)]
        stored = [
            json.loads(await harness.file("artifacts/task-result.json", key="notice", attempt=item))
            for item in (1, 2)
        ]

        assert [event.type for event in history if "Revi" in event.type or "App" in event.type] == [
            "Task Submitted For Review",
            "Task Revision Requested",
            "Task Submitted For Review",
            "Task Approved",
        ]
        assert (row.state, row.attempt, row.usage.turns) == (TaskState.COMPLETED, 2, 2)
        assert first["sessionId"] == second["sessionId"]
        assert (first["resumed"], second["resumed"]) == (False, True)
        assert [item["subject"] for item in stored] == [
            "Ferries on Friday",
            "First ferry on Friday at 9:30",
        ]
        assert await harness.result("notice") == stored[1]
        assert (await harness.row("send")).state is TaskState.COMPLETED


def test_only_the_stand_in_makes_them_run_offline() -> None:
    written = [
        path
        for path in EXAMPLES.rglob("*")
        if path.is_file() and not {"till", ".longshore"} & {*path.relative_to(EXAMPLES).parts}
    ]

    naming = [path.name for path in written if "ANTHROPIC_BASE_URL" in path.read_text()]

    assert naming == ["offline.sh"]
