"""The zip of the functions: the same bytes each time, and all that they need."""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from longshore.adapters.aws.deploy import package as package_module
from longshore.adapters.aws.deploy.package import (
    AWS_SERVICES,
    FunctionPackage,
    build_package,
    install_command,
    locked_versions,
)
from longshore.adapters.aws.deploy.stacks.stage_config import FunctionsConfig
from longshore.adapters.aws.deploy.stacks.template import FUNCTIONS
from longshore.errors import ConfigurationError

PACKAGE = Path(package_module.__file__).parents[3]


@pytest.fixture(scope="module")
def package() -> FunctionPackage:
    return build_package(None)


@pytest.fixture(scope="module")
def files(package: FunctionPackage) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(io.BytesIO(package.data)) as result:
        return result.infolist()


def test_what_is_built_twice_is_the_same(package: FunctionPackage) -> None:
    again = build_package(None)

    assert again.sha256 == package.sha256
    assert package.key == f"functions/{package.sha256}.zip"


def test_it_is_sorted_and_its_times_and_modes_are_fixed(files: list[zipfile.ZipInfo]) -> None:
    names = [item.filename for item in files]

    assert names == sorted(set(names))
    assert {item.date_time for item in files} == {(1980, 1, 1, 0, 0, 0)}
    assert {item.external_attr >> 16 for item in files} == {0o100644}


def test_there_is_no_byte_code_no_test_and_no_note_of_an_installer_in_it(
    files: list[zipfile.ZipInfo],
) -> None:
    parts = {part for item in files for part in item.filename.split("/")}

    assert not {part for part in parts if part.endswith(".pyc")}
    assert not parts & {"__pycache__", "tests", "RECORD", "INSTALLER", "direct_url.json"}
    assert not any(
        item.filename.startswith(("longshore/audit/", "longshore/testing/")) for item in files
    )


def test_every_function_starts_from_the_zip_alone(tmp_path: Path, package: FunctionPackage) -> None:
    with zipfile.ZipFile(io.BytesIO(package.data)) as result:
        result.extractall(tmp_path)
    modules = ", ".join(entry.handler.rpartition(".")[0] for entry in FUNCTIONS.values())
    check = f"import {modules}, longshore; print(longshore.__file__)"

    # Nothing of this environment: no site packages, no variables.
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-B",
            "-c",
            f"import sys; sys.path[:0] = {[str(tmp_path)]}; {check}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "longshore" / "__init__.py")


def test_every_service_that_functions_call_is_described_in_it(
    files: list[zipfile.ZipInfo],
) -> None:
    called = set()
    for path in (PACKAGE / "adapters" / "aws").glob("*.py"):
        if path.name.startswith(("deploying", "examining")):
            continue  # of the command line, which is no function
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="call" | "client"),
                    args=[ast.Constant(value=str(service)), *_],
                ):
                    called.add(service)
    described = {item.filename.split("/")[2] for item in files if "botocore/data/" in item.filename}

    assert called <= set(AWS_SERVICES) <= described


def test_every_dependency_is_locked_by_its_hash() -> None:
    text = package_module.REQUIREMENTS.read_text(encoding="utf-8")

    assert len(locked_versions()) > 20
    assert text.count("==") == len(locked_versions())
    assert text.count("--hash=sha256:") >= len(locked_versions())
    assert "://" not in text


@pytest.mark.parametrize("uv", ["/usr/bin/uv", None])
@pytest.mark.parametrize(("architecture", "machine"), [("x86_64", "x86_64"), ("arm64", "aarch64")])
def test_dependencies_are_brought_for_the_runtime_and_not_for_this_machine(
    uv: str | None, architecture: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_module.shutil, "which", lambda *_, **__: None)
    runtime = FunctionsConfig(python="3.13", architecture=architecture)

    command = install_command(Path("/target"), runtime, uv)

    assert command[: 3 if uv else 4] == (
        [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
    )
    assert {"--require-hashes", "--no-deps", "--only-binary", "/target"} <= set(command)
    assert command[command.index("--python-version") + 1] == "3.13"
    assert any(machine in word and "manylinux_2_28" in word for word in command)


def test_a_dependency_that_is_not_to_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "requirements.txt"
    wrong.write_text("no-such-thing==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    monkeypatch.setattr(package_module, "REQUIREMENTS", wrong)

    with pytest.raises(ConfigurationError, match="no-such-thing not installed: pip install"):
        build_package(None)
