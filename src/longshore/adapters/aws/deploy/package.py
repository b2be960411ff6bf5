"""The zip of all functions: Longshore and its locked dependencies, as a reproducible build.

Order, times and modes are fixed, byte code and files of the installer are left out. So the zip is
named by its hash, and an unchanged zip is not uploaded again.

For AWS, the dependencies are those of ``function-requirements.txt``, by their hashes, for the
platform of the runtime. For an emulator of AWS the installed packages are used: it runs functions
on this machine, with this Python.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final

from longshore.adapters.aws.deploy.stacks.stage_config import FunctionsConfig
from longshore.errors import ConfigurationError

REQUIREMENTS: Final = Path(__file__).with_name("function-requirements.txt")
AWS_SERVICES: Final = ("dynamodb", "events", "s3", "sqs", "ssm", "sts")
"""The services that functions call. Without the others the zip is a quarter of the size."""

_PACKAGE: Final = Path(__file__).parents[3]
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_FILE_MODE: Final = 0o100644 << 16
_ZIP_UNIX: Final = 3
# Folders and files that functions do not need.
_EXCLUDED: Final = {"__pycache__", "tests", "bin"}
_INSTALLER_FILES: Final = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", ".lock"}
_EXCLUDED_SUBPACKAGES: Final = {"audit", "testing"}
_PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ \\;]+)", re.MULTILINE)
_PLATFORMS: Final = {"x86_64": "x86_64", "arm64": "aarch64"}
# Lambda's runtimes from 3.12 on (Amazon Linux 2023) have 2.34.
_GLIBC: Final = ("2_28", "2_17")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPackage:
    """A zip with the code of the functions."""

    data: bytes
    sha256: str

    @property
    def key(self) -> str:
        """The key in the bucket."""
        return f"functions/{self.sha256}.zip"


def build_package(runtime: FunctionsConfig | None) -> FunctionPackage:
    """The zip for a runtime; None: for this machine.

    Raises:
        ConfigurationError: a dependency cannot be installed.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-deploy-") as folder:
        if runtime is None:
            files = _installed_files()
        else:
            _install(Path(folder), runtime)
            files = _files_below(Path(folder))
        files |= {
            f"{_PACKAGE.name}/{name}": path
            for name, path in _files_below(_PACKAGE).items()
            if name.partition("/")[0] not in _EXCLUDED_SUBPACKAGES
        }
        own = version("longshore")
        note = f"Metadata-Version: 2.1\nName: longshore\nVersion: {own}\n"
        contents = {f"longshore-{own}.dist-info/METADATA": note.encode()}
        contents |= {name: path.read_bytes() for name, path in files.items()}
    data = _build_zip(contents)
    return FunctionPackage(data=data, sha256=hashlib.sha256(data).hexdigest())


def _build_zip(contents: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
            entry.create_system = _ZIP_UNIX
            entry.external_attr = _FILE_MODE
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, contents[name])
    return file.getvalue()


def _files_below(folder: Path) -> dict[str, Path]:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path for name, path in paths.items() if path.is_file() and _is_needed(name)}


def _is_needed(name: str) -> bool:
    parts = name.split("/")
    if _EXCLUDED & set(parts) or parts[-1] in _INSTALLER_FILES or name.endswith(".pyc"):
        return False
    if parts[:2] == ["botocore", "data"] and len(parts) > 3:
        return parts[2] in AWS_SERVICES
    return True


def _installed_files() -> dict[str, Path]:
    try:
        installed = [distribution(name) for name, _ in locked_versions()]
    except PackageNotFoundError as error:
        problem = f"{error.name} not installed: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error
    return {
        file.as_posix(): Path(str(package.locate_file(file)))
        for package in installed
        for file in package.files or ()
        # Scripts are outside, as ../../../bin/name.
        if not file.as_posix().startswith("..") and _is_needed(file.as_posix())
    }


def locked_versions() -> list[tuple[str, str]]:
    """The dependencies of functions, and the version of each."""
    return _PINNED.findall(REQUIREMENTS.read_text(encoding="utf-8"))


def _install(folder: Path, runtime: FunctionsConfig) -> None:
    command = install_command(folder, runtime)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = next((line for line in lines if "ERROR" in line or "error" in line), lines[-1:])
        problem = (
            f"the functions' dependencies cannot be installed for Python {runtime.python}: {reason}"
        )
        raise ConfigurationError([problem])


def install_command(folder: Path, runtime: FunctionsConfig, uv: str | None = None) -> list[str]:
    """The command that installs the dependencies: with uv if it is installed, else with pip.

    Both install the same files, because the hashes are fixed.
    """
    machine = _PLATFORMS[runtime.architecture]
    common = ["--quiet", "--target", str(folder), "--no-deps", "--require-hashes"]
    common += ["--only-binary", ":all:", "--python-version", runtime.python]
    uv = uv or shutil.which("uv", path=f"{Path(sys.executable).parent}") or shutil.which("uv")
    if uv:
        platform = f"{machine}-manylinux_{_GLIBC[0]}"
        common += ["--python-platform", platform, "--link-mode", "copy"]
        return [uv, "pip", "install", *common, "-r", str(REQUIREMENTS)]
    common += ["--no-compile", "--implementation", "cp"]
    for glibc in _GLIBC:
        common += ["--platform", f"manylinux_{glibc}_{machine}"]
    common += ["--platform", f"manylinux2014_{machine}"]
    return [sys.executable, "-m", "pip", "install", *common, "-r", str(REQUIREMENTS)]
