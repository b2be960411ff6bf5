"""The how-to for AWS runs as printed, and the files of deploy/ that it names are valid."""

import configparser
import contextlib
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.interfaces.cli.main import COMMANDS
from longshore.settings import FIELDS, variable_of
from tests.aws.deploy.installation import enforcing_stand_in
from tests.docs import test_examples as pages

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "howto" / "deploy-to-aws.md"
CONTAINER = ROOT / "deploy" / "Containerfile.aws"
DROP_IN = ROOT / "deploy" / "longshore-worker.service.d" / "aws.conf"


@pytest.mark.timeout(300)
def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "stand-in").mkdir()
    with enforcing_stand_in(tmp_path / "stand-in") as here, contextlib.ExitStack() as stack:
        page_variables = pages.environment_in(tmp_path)
        monkeypatch.setattr(pages, "environment_in", lambda _: {**here.variables, **page_variables})
        for block in pages.blocks_of(PAGE):
            if block.language == "console":
                # On a stand-in, the program prints the endpoint as well.
                at = "region … at …," if "region …," in block.text else "region … at …"
                shown = re.sub(r"region …,?", at, block.text)
                block = pages.Block(language="console", text=shown, line=block.line)
            try:
                pages.run_block(block, tmp_path, stack)
            except AssertionError as error:
                error.add_note(f"{PAGE.name}, line {block.line}")
                raise


def test_the_page_names_every_setting_of_a_stage() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("\n## Settings of a stage\n")[2]
    names = [entry.name for entry in fields(StageConfig) if entry.name != "stage"]

    assert [name for name in names if f"`{name}" not in table] == []


def test_the_container_runs_an_existing_command_as_a_user_other_than_root() -> None:
    text = CONTAINER.read_text(encoding="utf-8")
    user = re.findall(r"^USER (\d+):", text, re.MULTILINE)
    program, command = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[-1])
    set_here = re.findall(r"\b(LONGSHORE_\w+)=", text)

    assert int(user[-1]) > 0
    assert program == "longshore"
    assert command in COMMANDS
    assert set(set_here) <= {variable_of(name) for name in FIELDS}
    assert (ROOT / re.findall(r"COPY (src/\S+requirements\.txt)", text)[0]).exists()


def test_the_unit_for_aws_sets_an_existing_setting() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    unit.read_string(DROP_IN.read_text(encoding="utf-8"))
    name, _, value = unit["Service"]["Environment"].partition("=")

    assert (name, value) == (variable_of("backend"), "aws")
    assert not unit["Service"]["EnvironmentFile"].startswith("-")
