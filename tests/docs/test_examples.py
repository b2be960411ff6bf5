"""Every code block of README, quickstart and how-tos is run, and its output compared.

The blocks of a page run in order, in one new folder:

- ``console``: lines after ``$`` are run, and their output must match the lines below; ``…`` in a
  line matches any text, and on a line of its own any lines. A command that ends with ``&`` runs to
  the end of the page and must then exit with 0; only the first line of its output is compared.
  ``longshore why`` is repeated until its output matches, because a task may still be running.
  Where a page has the default port of the server, the port that is really used is inserted.
- ``sh``: the whole block is run and must succeed. Blocks of ``make`` lines are not run.
- ``yaml``, ``toml`` and ``python`` with a file name in their first line are written to that file;
  below ``examples/`` they must equal the example. Python without a file name is run.
- ``text`` and ``mermaid`` are not run. A block in any other language is an error.

On pages with agents, a fake Messages API is the model.
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

from tests.docs.model import ANSWERS
from verification.messages_api import MessagesApiThread

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "quickstart.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
# This page needs an emulator of AWS: tests/aws/deploy/test_howto.py runs it.
PAGES.remove(ROOT / "docs" / "howto" / "deploy-to-aws.md")
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
BIN = Path(sys.executable).parent
UNEXECUTED = ("text", "mermaid")
TIMEOUT_S = 90
AGENTS = "runner: agent"
POLLED_COMMAND = "longshore why "
MAX_POLLS = 100
PAGE_PORT = 8421
PORT_FILE = ".port-of-the-server"
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
        Block(language=match[1], text=match[2], line=text.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(text)
    ]


def environment_in(folder: Path) -> dict[str, str]:
    return {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "100"}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line as a reader would, with this environment's programs first."""
    port = folder / PORT_FILE
    if port.exists():
        command = command.replace(f":{PAGE_PORT}", f":{port.read_text()}")
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
    """The commands of a console block, each with its expected output."""
    for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command[:-1]}{more.removeprefix('>')}"
        yield command, shown


def looks_like(shown: str) -> re.Pattern[str]:
    """A pattern for the expected output; the width of columns does not matter."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else rf"{_line_like(line)}\s*?\n"
        for line in shown.rstrip("\n").splitlines()
    ]
    return re.compile("".join(lines))


def _line_like(line: str) -> str:
    words = [re.escape(word).replace("…", ".*") for word in line.split()]
    # Durations depend on the machine, and so does their unit.
    likely = r" *" + r" +".join(words)
    return re.sub(r"\.\* \+s(?=\W|$)", r".* +(?:ms|s|min)", likely)


@contextlib.contextmanager
def running(command: str, shown: str, folder: Path) -> Iterator[None]:
    """Run a command in the background while others are run."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command.removesuffix('&')}"],
        cwd=folder,
        # Any free port: the one on the page may be in use. Later commands use it instead.
        env={**environment_in(folder), "LONGSHORE_API_PORT": "0", "LONGSHORE_LOG_LEVEL": "error"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            first = shown.partition("\n")[0].replace(f":{PAGE_PORT}", ":…")
            line = process.stdout.readline()
            assert looks_like(first).fullmatch(line), f"{command}\n{line}"
            if port := re.search(r":(\d+)$", line.rstrip()):
                (folder / PORT_FILE).write_text(port[1])
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
                    stack.enter_context(running(command, shown, folder))
                    continue
                for _ in range(MAX_POLLS if command.startswith(POLLED_COMMAND) else 1):
                    done = run(command, folder)
                    if matches := looks_like(shown).fullmatch(done.stdout):
                        break
                assert matches, f"{command}\n{done.stdout}"
        case "sh":
            if not block.text.startswith("make"):
                done = run(block.text, folder)
                assert done.returncode == 0, f"{block.text}\n{done.stdout}"
        case "yaml" | "toml" | "python":
            write_or_run(block, folder)
        case _:
            assert block.language in UNEXECUTED


def write_or_run(block: Block, folder: Path) -> None:
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
def test_the_output_on_the_page_is_the_real_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    with contextlib.ExitStack() as stack:
        if AGENTS in page.read_text(encoding="utf-8"):
            model = stack.enter_context(MessagesApiThread(ANSWERS))
            environment = {**environment_in(tmp_path), "ANTHROPIC_API_KEY": "sk-ant-of-the-fake"}
            environment["ANTHROPIC_BASE_URL"] = model.url
            monkeypatch.setitem(globals(), "environment_in", lambda _: environment)
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


def test_output_must_match_except_for_what_is_elided() -> None:
    shown = looks_like("JOB  DURATION\njob-a  … s\n…\nend\n")

    assert shown.fullmatch("JOB      DURATION\njob-a   0.1 s\none\ntwo\nend\n")
    assert not shown.fullmatch("JOB  DURATION\njob-b  0.1 s\nend\n")
    assert not shown.fullmatch("JOB  DURATION\njob-a  0.1 s\nend\nmore\n")


def test_a_command_may_continue_on_the_next_line() -> None:
    sessions = list(sessions_in("$ echo a \\\n> b\na b\n$ true\n"))

    assert sessions == [("echo a  b", "a b\n"), ("true", "")]


def test_a_block_in_an_unknown_language_is_an_error(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, pytest.raises(AssertionError):
        run_block(Block(language="perl", text="print 1\n", line=1), tmp_path, stack)
