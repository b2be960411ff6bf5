"""The credential is not visible in responses, messages or memory."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from longshore.errors import ConfigurationError
from longshore.execution.runners.agent.credentials import (
    API_KEY,
    AUTH_TOKEN,
    Credential,
    SecretMask,
)
from tests.agents.gateway_client import (
    SECRET,
    http_response,
    open_gateway,
    raw_upstream,
    scenario,
    scripted_model,
)
from verification.messages_api import error, raw

UNPRIVILEGED = 65534


@pytest.mark.parametrize("variable", [API_KEY, AUTH_TOKEN])
def test_a_credential_does_not_show_itself(variable: str) -> None:
    credential = Credential(SECRET, variable)

    assert SECRET not in f"{credential!r} {credential} {[credential]}"


@pytest.mark.parametrize("secret", ["", "two words", "line\nbreak: x", "schlüssel", "\x7f"])
@pytest.mark.parametrize("variable", [API_KEY, AUTH_TOKEN])
def test_a_credential_that_is_invalid_in_a_header_is_refused_and_not_quoted(
    variable: str, secret: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Credential(secret, variable)

    assert str(refused.value).startswith("ANTHROPIC_")
    assert not secret or secret not in str(refused.value)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_mask_finds_the_secret_in_chunks_of_any_size(size: int) -> None:
    secret = "abcab" * 3
    mask, data = (
        SecretMask(secret, "***"),
        b"abcab" * 4 + b" ababcab " + b"abcab" * 3 + b" abcababca",
    )

    seen = b"".join(mask.feed(data[start : start + size]) for start in range(0, len(data), size))

    assert seen + mask.end() == b"***abcab ababcab *** abcababca"


def test_a_very_short_key_is_no_secret_and_leaves_answers_as_they_are() -> None:
    mask = SecretMask("x", "***")

    assert (mask.feed(b'{"type": "text"}'), mask.end()) == (b'{"type": "text"}', b"")
    assert mask.mask_text("a text") == "a text"


def test_a_mask_delays_only_a_possible_start_of_the_secret() -> None:
    mask = SecretMask(SECRET, "***")

    assert mask.feed(b"data: sk-\n\n") == b"data: sk-\n\n"
    assert mask.feed(b"data: sk-") == b"data: "
    assert mask.feed(b"no\n\n") == b"sk-no\n\n"
    assert mask.end() == b""


@scenario
async def test_a_credential_in_a_response_is_replaced_by_the_token() -> None:
    says = [
        error(401, f"invalid key {SECRET}"),
        raw(502, f"<p>{SECRET}", headers={"x-you-sent": SECRET}),
    ]
    async with scripted_model(says) as (_, client):
        for status in (401, 502):
            async with client.ask() as answer:
                received = f"{answer.headers} {await answer.text()}"

                assert answer.status == status
                assert SECRET not in received
                assert client.gateway.token in received


@scenario
async def test_usage_is_found_in_a_stream_split_anywhere() -> None:
    message = f"data: {json.dumps({'type': 'error', 'error': {'message': SECRET}})}\n\n".encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    cut = message.index(SECRET.encode()) + 7
    async with (
        raw_upstream(head, message[:cut], message[cut:]) as up,
        open_gateway(up.url) as client,
    ):
        _, received = await client.response()

        assert received == message.decode().replace(SECRET, client.gateway.token)


@scenario
async def test_a_connection_error_does_not_contain_the_credential(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = http_response(f"900 {SECRET}", b"{}")
    async with raw_upstream(broken) as up, open_gateway(up.url) as client:
        try:
            async with client.ask() as answer:
                received = f"{answer.reason} {await answer.text()}"
        except OSError as raised:
            received = str(raised)

        printed = capfd.readouterr()
        assert SECRET not in f"{received} {vars(client.gateway)}"
        assert SECRET not in f"{caplog.text} {printed.out} {printed.err}"


# Two processes of one user: the first holds a secret, the second looks. As another user than root,
# whom nothing is hidden from.
MEMORY_READER = textwrap.dedent(
    """
    import ctypes, json, os, signal, sys
    from longshore.execution import process_table as table
    from longshore.execution.linux import die_with_parent, hide_memory
    from longshore.execution.process_table import descendants

    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    dumpable = 4
    ctypes.CDLL(None).prctl(dumpable, 1, 0, 0, 0)  # a change of the user has hidden us, too

    def may_open(path):
        try:
            with open(path, "rb") as file:
                file.read(1)
        except PermissionError:
            return False
        except OSError:
            return True  # opened, but there is nothing at the start of its memory
        return True

    def seen(hides):
        ready, report = os.pipe()
        looker = os.getpid()
        holder = os.fork()
        if holder == 0:
            die_with_parent(looker)
            os.write(report, b"%d" % (hide_memory() if hides else 7))
            signal.pause()
        hidden = os.read(ready, 1)
        below = descendants(looker)
        found = {
            "hidden": hidden.decode(),
            "environ": may_open(f"/proc/{holder}/environ"),
            "mem": may_open(f"/proc/{holder}/mem"),
            "alive": table.is_alive(holder),
            "size": table.rss_bytes_of(holder) > 0 and below.get(holder, 0) > 0,
            "start": table.start_time_of(holder) is not None,
            "group": holder in table.group_members(os.getpgid(holder)),
        }
        os.kill(holder, signal.SIGTERM)
        _, status = os.waitpid(holder, 0)
        return {**found, "signal": os.WTERMSIG(status)}

    print(json.dumps([seen(False), seen(True)]))
    """
).replace("UNPRIVILEGED", str(UNPRIVILEGED))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hide a process's memory")
def test_the_memory_of_a_child_is_hidden_but_its_state_stays_visible() -> None:
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY_READER],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    plain, hidden = json.loads(ran.stdout)
    stored = {"alive": True, "size": True, "start": True, "group": True, "signal": 15}
    assert plain == {"hidden": "7", "environ": True, "mem": True, **stored}
    assert hidden == {"hidden": "1", "environ": False, "mem": False, **stored}
