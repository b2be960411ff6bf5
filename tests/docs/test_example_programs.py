"""Every example program and the Python program in the README run as documented."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 90
LONGEST_SNIPPET = 15
_EXECUTED = re.compile(r"^<!-- executed -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r"# (?:[\w-]+/)*(\w+\.py)\n")

# Patterns for the output of each program.
PRINTED = {
    "fan_out": r"1 Rotterdam 180\n2 Lisbon 100\n3 Bergen 80\n",
    "readme_snippet": r"6\n",
    "submit_a_file": r"(?s).*\n?report: Sales by region\n.*nightly-report: completed, 5 of 5 .*\n",
    "survive_a_kill": (
        r"attempt 1 writes 'harbour'\nattempt 1 writes 'storm'\n-- .* --\n"
        r"attempt 2 writes 'storm'\nattempt 2 writes 'island'\nthe book:\n"
        r"  the harbour, written in attempt 1\n  the storm, .* 2\n  the island, .* 2\n"
    ),
}


def run(program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user would, in its own folder."""
    return subprocess.run(
        [sys.executable, program],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def executed_in(page: Path) -> list[tuple[str, str]]:
    """File names and texts of the Python blocks that a page marks as executed."""
    texts = _EXECUTED.findall(page.read_text(encoding="utf-8"))
    titles = [_TITLE.match(text) for text in texts]
    return [
        (title[1] if title else "snippet.py", text[title.end() :] if title else text)
        for title, text in zip(titles, texts, strict=True)
    ]


def test_every_example_program_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_program_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    done = run(EXAMPLES / f"{name}.py", tmp_path)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout), done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_importing_an_example_runs_nothing(path: Path, tmp_path: Path) -> None:
    importing = tmp_path / "importing.py"
    importing.write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport {path.stem}\n")

    done = run(importing, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_readme_executes_a_short_python_program(tmp_path: Path) -> None:
    snippets = executed_in(ROOT / "README.md")
    if not snippets:
        pytest.skip("the README shows no Python program that it says is executed")

    for name, text in snippets:
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = run(tmp_path / name, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert len(text.splitlines()) <= LONGEST_SNIPPET


def test_an_executed_block_is_found_with_its_name(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nno\n```\n\n<!-- executed -->\n\n```python\n# examples/a.py\nprint(1)\n```\n"
        "<!-- executed -->\n```python\nprint(2)\n```\n"
    )

    assert executed_in(page) == [("a.py", "print(1)\n"), ("snippet.py", "print(2)\n")]
