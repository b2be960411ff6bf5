"""The stand-in as a process of its own, and how it is steered over HTTP."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.verification.messages_api.client import answer_to, scenario, send_request
from verification.messages_api import MessagesApi, error, text
from verification.messages_api.__main__ import main

LIMIT_S = 30
SCRIPT = [{"kind": "text", "text": "from the file"}]


async def _control(api: MessagesApi, method: str, path: str, body: Any = None) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=api.url, trust_env=False, timeout=LIMIT_S) as client:
        return await client.request(method, f"/_control/{path}", json=body)


@scenario
async def test_a_script_is_put_and_its_requests_are_read() -> None:
    async with MessagesApi() as api:
        put = await _control(api, "PUT", "scripts/job1", SCRIPT)
        assert await answer_to(put.json()["url"], "sing") == "from the file"

        (request,) = (await _control(api, "GET", "requests/job1?count=1")).json()["requests"]

    assert (request["prompt"], request["state"], request["sessionId"]) == ("sing", "answered", "s1")
    assert request["headers"]["x-api-key"] == "a-key"


@scenario
async def test_requests_that_do_not_come_are_not_waited_for_for_ever() -> None:
    async with MessagesApi() as api:
        late = await _control(api, "GET", "requests?count=2&timeoutS=0.01")

    assert late.status_code == 408
    assert late.json()["problem"].startswith("of 2 requests in scenario '', 0 came")


@scenario
async def test_the_control_api_releases_a_gate_and_reports_a_doubled_question() -> None:
    async with MessagesApi([text(gate="g")]) as api:
        assert (await _control(api, "POST", "gates/g")).status_code == 200
        for _ in range(2):
            await send_request(api.url)

        again = await _control(api, "GET", "repeated-requests")

    assert again.json() == {"repeatedRequests": [[2, 1]]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "problem"),
    [
        ("PUT", "scripts", [{"kind": "txt"}], 400, "script[0].kind"),
        ("PUT", "scripts/a/b", SCRIPT, 400, "a scenario's key"),
        ("GET", "requests?count=x", None, 400, "invalid literal"),
        ("DELETE", "scripts", None, 404, "DELETE /_control/scripts"),
    ],
)
@scenario
async def test_a_wrong_word_to_the_control_is_answered_with_what_is_wrong(
    method: str, path: str, body: Any, status: int, problem: str
) -> None:
    async with MessagesApi([error(500)]) as api:
        response = await _control(api, method, path, body)

    assert response.status_code == status
    assert problem in response.json()["problem"]


@scenario
async def test_a_call_of_the_control_api_is_no_request() -> None:
    async with MessagesApi() as api:
        await _control(api, "GET", "requests")

    assert (api.requests, api.other_requests) == ([], [])


def test_the_process_writes_its_port_and_ends_on_request(
    tmp_path: Path,
) -> None:
    script, port = tmp_path / "script.json", tmp_path / "port"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "verification.messages_api", "--script", str(script)]
    process = subprocess.Popen(
        [*command, "--port-file", str(port)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("ANTHROPIC_BASE_URL=")
        answer = httpx2.post(f"{url}/v1/messages", json={"messages": []}, trust_env=False)
        process.send_signal(signal.SIGTERM)

        assert process.wait(LIMIT_S) == 0
    assert answer.json()["content"] == [{"type": "text", "text": "from the file"}]
    assert url.endswith(f":{port.read_text().strip()}")


def test_started_beside_a_command_it_has_all_scripts_and_ends_with_it(tmp_path: Path) -> None:
    scripts = [
        {"scripts": [{"when": word, "steps": [{"kind": "text", "text": f"on {word}"}]}]}
        for word in ("tides", "moons")
    ]
    for number, script in enumerate(scripts):
        (tmp_path / str(number)).write_text(json.dumps(script))
    started = f"{sys.executable} -m verification.messages_api --with-parent"
    # The shell's place is taken by what reads to the end of its input.
    shell = f"{started} --script {tmp_path}/0 --script {tmp_path}/1 & exec cat > /dev/null"
    process = subprocess.Popen(
        ["sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().strip().removeprefix("ANTHROPIC_BASE_URL=")
        question = {"messages": [{"role": "user", "content": "Write of moons."}]}
        answer = httpx2.post(f"{url}/v1/messages", json=question, trust_env=False)
        process.stdin.close()

        # Its output ends when no process is left to write there.
        process.stdout.read()
    assert answer.json()["content"] == [{"type": "text", "text": "on moons"}]


@pytest.mark.parametrize("content", ["[{}]", "{"])
def test_a_script_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.json"
    script.write_text(content)

    assert main(["--script", str(script)]) == 2
    assert "script.json: " in capsys.readouterr().err
