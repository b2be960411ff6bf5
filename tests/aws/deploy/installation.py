"""A whole installation on a stand-in of its own, which denies what no policy allows.

Tests use it from outside, as a person does: by the command line, by the API behind its gateway, by
invoking functions.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from longshore.adapters.aws.client import AwsClient, AwsClientOptions
from tests.aws.stand_in import PYTHON, REGION

ROOT = Path(__file__).parents[3]
LONGSHORE = Path(sys.executable).with_name("longshore")
TIMEOUT_S = 100


@dataclass(kw_only=True)
class DeployedInstallation:
    """A stand-in, and what is deployed on it."""

    folder: Path
    endpoint: str
    call_log: Path
    stage: str = "e2e"
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a person who may do everything."""
        return {
            "PATH": f"{LONGSHORE.parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "LONGSHORE_AWS_REGION": REGION,
            "LONGSHORE_AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def stage_variables(self) -> dict[str, str]:
        """The settings with which commands use the deployed stage."""
        return {
            "LONGSHORE_BACKEND": "aws",
            "LONGSHORE_ENVIRONMENT": self.stage,
            "LONGSHORE_AWS_BUCKET": self.outputs["Bucket"],
            "LONGSHORE_DATA_DIR": str(self.folder / "data"),
            "LONGSHORE_WORKER_POLL_WAIT": "1s",
        }

    def client_options(self) -> AwsClientOptions:
        return AwsClientOptions(
            region=REGION,
            endpoint_url=self.endpoint,
            credentials=("test", "test"),
            read_timeout_s=TIMEOUT_S,
        )

    def aws(self) -> AwsClient:
        return AwsClient(self.client_options())

    def run(self, *arguments: str, code: int = 0, **more: str) -> str:
        """What a command prints; it must end with this code."""
        done = subprocess.run(
            [str(LONGSHORE), *arguments],
            env={**self.variables, **more},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def start(self, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs in the background and must exit with 0 on SIGTERM."""
        with (self.folder / f"{arguments[0]}.log").open("w") as log:
            process = subprocess.Popen(
                [str(LONGSHORE), *arguments],
                env={**self.variables, **self.stage_variables, **more},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            with process:
                try:
                    yield process
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(TIMEOUT_S) == 0, (self.folder / log.name).read_text()
                finally:
                    process.kill()

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """What AWS answers to a caller who may do everything."""

        async def ask() -> dict[str, Any]:
            aws = self.aws()
            try:
                return await aws.call(service, operation, **parameters)
            finally:
                await aws.close()

        return asyncio.run(ask())

    def invoke(self, function: str, event: Any) -> Any:
        """What a function answers; it must not fail."""

        async def ask() -> Any:
            aws = self.aws()
            try:
                answer = await aws.call(
                    "lambda",
                    "invoke",
                    FunctionName=f"longshore-{self.stage}-{function}",
                    Payload=json.dumps(event),
                )
                text = (await answer["Payload"].read()).decode()
                assert "FunctionError" not in answer, f"{function}: {text}"
                return json.loads(text)
            finally:
                await aws.close()

        return asyncio.run(ask())

    def service_variables(self, stack: str) -> dict[str, str]:
        """Variables of a user with exactly the permissions of a service on ECS."""
        result = self.call(
            "cloudformation",
            "describe_stack_resource",
            StackName=f"longshore-{self.stage}-{stack}",
            LogicalResourceId="TaskRole",
        )
        role = result["StackResourceDetail"]["PhysicalResourceId"]
        inline_policy = self.call("iam", "get_role_policy", RoleName=role, PolicyName="privileges")

        async def create() -> tuple[str, str]:
            aws = self.aws()
            try:
                return await create_user(
                    aws, f"{self.stage}-{stack}", inline_policy["PolicyDocument"]
                )
            finally:
                await aws.close()

        key, secret = asyncio.run(create())
        return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

    def calls(self) -> list[dict[str, Any]]:
        """The recorded calls of roles and users."""
        return [json.loads(line) for line in self.call_log.read_text().splitlines()]


async def create_user(aws: AwsClient, name: str, policy: dict[str, Any]) -> tuple[str, str]:
    """Credentials of a new user of that name with exactly the permissions of a policy."""
    text = json.dumps(policy)
    await aws.call("iam", "create_user", UserName=name)
    await aws.call(
        "iam", "put_user_policy", UserName=name, PolicyName="privileges", PolicyDocument=text
    )
    key = (await aws.call("iam", "create_access_key", UserName=name))["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


@contextmanager
def enforcing_stand_in(folder: Path) -> Iterator[DeployedInstallation]:
    """A separate stand-in: it checks permissions, so other tests cannot share it."""
    if not PYTHON.exists():
        pytest.skip("no AWS stand-in: `make test` installs it")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call_log = folder / "calls"
    call_log.touch()
    installation = DeployedInstallation(
        folder=folder, endpoint=f"http://127.0.0.1:{port}", call_log=call_log
    )
    temporary = folder / "tmp"
    temporary.mkdir()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [PYTHON, Path(__file__).with_name("enforcing_server.py"), call_log],
            env={
                "PATH": os.environ["PATH"],  # noqa: TID251
                "GATEWAY_PORT": str(port),
                "BIND_HOST": "127.0.0.1",
                "TMPDIR": str(temporary),
                "LOG_LEVEL": "INFO",
                # Each function has its own copy of the code, so cached byte code is never reused.
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for(installation, process)
            yield installation
        finally:
            process.kill()
            process.wait()


def _wait_for(installation: DeployedInstallation, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + TIMEOUT_S
    while True:
        try:
            httpx2.get(f"{installation.endpoint}/_ministack/health", timeout=5).raise_for_status()
        except httpx2.HTTPError:
            if process.poll() is not None or time.monotonic() > ends:
                pytest.fail(
                    f"the stand-in did not start:\n{(installation.folder / 'log').read_text()}"
                )
            time.sleep(0.02)  # noqa: TID251 - another process starts, without a signal to wait for
        else:
            return
