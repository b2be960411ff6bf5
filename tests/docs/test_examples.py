"""What the pages show is what happens: every code block of README, quickstart and how-tos is run.

A page is a story, so its blocks run in order, in one fresh folder:

- ``console``: lines after ``$`` are run, and what is shown below them must come out; ``…`` in a
  line stands for anything, and on a line of its own for any lines. One that ends with ``&`` goes on
  to the end of the page, and must then end well; of what it prints, the first line is read. What
  only looks (``longshore why``) is asked again until it shows that: a reader takes their time.
- ``sh``: the whole block is run and must succeed. Blocks of ``make`` lines are for the reader.
- ``yaml``, ``toml`` and ``python`` with a file name in their first line are written there; below
  ``examples/`` they must be what the example says. Python without a file name is run.
- ``text`` and ``mermaid`` are pictures. Any other block is an error, because nobody would run it.

Where a page has agents, a stand-in is their model.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from longshore.testing.messages_api import MessagesApiThread
from tests.docs.model import ANSWERS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "quickstart.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
# This one needs something that stands in for AWS: tests/aws/deploy/test_howto.py runs it.
PAGES.remove(ROOT / "docs" / "howto" / "deploy-to-aws.md")
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
BIN = Path(sys.executable).parent
PICTURES = ("text", "mermaid")
TIMEOUT_S = 90
AGENTS = "runner: agent"
LOOKS = "longshore why "
MOST_LOOKS = 100
_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.(?:yaml|toml|py))\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(language=found[1], text=found[2], line=text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
    ]


def environment_in(folder: Path) -> dict[str, str]:
    return {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "100"}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line as a reader would, with this environment's programs first."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment_in(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def sessions_in(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it is shown to print."""
    for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command[:-1]}{more.removeprefix('>')}"
        yield command, shown


def looks_like(shown: str) -> re.Pattern[str]:
    """What a page shows, as a pattern for what comes out; how far apart columns stand is free."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else rf"{_line_like(line)}\s*?\n"
        for line in shown.rstrip("\n").splitlines()
    ]
    return re.compile("".join(lines))


def _line_like(line: str) -> str:
    words = [re.escape(word).replace("…", ".*") for word in line.split()]
    # How long something takes is of the machine, and so is the unit in which that is told.
    likely = r" *" + r" +".join(words)
    return re.sub(r"\.\* \+s(?=\W|$)", r".* +(?:ms|s|min)", likely)


@contextlib.contextmanager
def going_on(command: str, shown: str, folder: Path) -> Iterator[None]:
    """A command that goes on while others are run."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command.removesuffix('&')}"],
        cwd=folder,
        # Any port that is free: others may have taken the one that the page shows.
        env={**environment_in(folder), "LONGSHORE_API_PORT": "0", "LONGSHORE_LOG_LEVEL": "error"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            first = shown.partition("\n")[0].replace(":8421", ":…")
            told = process.stdout.readline()
            assert looks_like(first).fullmatch(told), f"{command}\n{told}"
            yield
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0, command
        finally:
            process.kill()


def run_block(block: Block, folder: Path, stack: contextlib.ExitStack) -> None:
    match block.language:
        case "console":
            for command, shown in sessions_in(block.text):
                if command.endswith("&"):
                    stack.enter_context(going_on(command, shown, folder))
                    continue
                for _ in range(MOST_LOOKS if command.startswith(LOOKS) else 1):
                    done = run(command, folder)
                    if found := looks_like(shown).fullmatch(done.stdout):
                        break
                assert found, f"{command}\n{done.stdout}"
        case "sh":
            if not block.text.startswith("make"):
                done = run(block.text, folder)
                assert done.returncode == 0, f"{block.text}\n{done.stdout}"
        case "yaml" | "toml" | "python":
            keep_or_run(block, folder)
        case _:
            assert block.language in PICTURES


def keep_or_run(block: Block, folder: Path) -> None:
    named = _FILE_NAME.match(block.text)
    if named and named[1].startswith("examples/"):
        assert block.text[named.end() :] == (ROOT / named[1]).read_text(encoding="utf-8")
    elif named:
        (folder / named[1]).write_text(block.text, encoding="utf-8")
    else:
        assert block.language == "python", "a file needs its name in its first line"
        done = run(f"python - <<'END-OF-BLOCK'\n{block.text}\nEND-OF-BLOCK", folder)
        assert done.returncode == 0, done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_shows_what_happens(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    with contextlib.ExitStack() as stack:
        if AGENTS in page.read_text(encoding="utf-8"):
            model = stack.enter_context(MessagesApiThread(ANSWERS))
            known = {**environment_in(tmp_path), "ANTHROPIC_API_KEY": "sk-ant-of-the-stand-in"}
            known["ANTHROPIC_BASE_URL"] = model.url
            monkeypatch.setitem(globals(), "environment_in", lambda _: known)
        for block in blocks_of(page):
            try:
                run_block(block, tmp_path, stack)
            except AssertionError as error:
                error.add_note(f"{page.relative_to(ROOT)}, line {block.line}")
                raise


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_runs_to_the_end(example: Path, tmp_path: Path) -> None:
    done = run(f"longshore submit {example} --wait", tmp_path)

    assert done.returncode == 0, done.stdout


def test_what_is_shown_must_come_out_but_for_what_is_left_open() -> None:
    shown = looks_like("JOB  TOOK\njob-a  … s\n…\nend\n")

    assert shown.fullmatch("JOB      TOOK\njob-a   0.1 s\none\ntwo\nend\n")
    assert not shown.fullmatch("JOB  TOOK\njob-b  0.1 s\nend\n")
    assert not shown.fullmatch("JOB  TOOK\njob-a  0.1 s\nend\nmore\n")


def test_a_command_may_go_on_in_the_next_line() -> None:
    sessions = list(sessions_in("$ echo a \\\n> b\na b\n$ true\n"))

    assert sessions == [("echo a  b", "a b\n"), ("true", "")]


def test_a_block_that_nobody_would_run_is_an_error(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, pytest.raises(AssertionError):
        run_block(Block(language="perl", text="print 1\n", line=1), tmp_path, stack)
