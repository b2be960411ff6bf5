"""Control: scripts and requests of a server that runs in another process, over HTTP.

=======================================  ==========================================================
``PUT /_control/scripts[/KEY]``          set a script (see ``reading``); answers with its base URL
``GET /_control/requests[/KEY]``         what was asked; with ``?count=N&timeoutS=S``, when so many
``GET /_control/repeated-requests[/KEY]``      numbers of requests for an answer that had been given
``POST /_control/gates/NAME``            let the answers go that wait at a gate
=======================================  ==========================================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from verification.messages_api.http import Connection, IncomingRequest
from verification.messages_api.script_json import read_scripts

if TYPE_CHECKING:
    from verification.messages_api.server import MessagesApi

CONTROL = "/_control/"
_WAIT_TIMEOUT_S = 30.0


async def answer_control(
    api: MessagesApi, connection: Connection, incoming: IncomingRequest
) -> None:
    """Do what was asked for, or say why not."""
    what, _, key = incoming.path.removeprefix(CONTROL).partition("/")
    try:
        status, answer = await _handle(api, incoming, what, key)
    except TimeoutError as late:
        status, answer = 408, {"problem": str(late)}
    # Of what was sent: a script that is none, a count that is no number.
    except ValueError as problem:
        status, answer = 400, {"problem": str(problem)}
    await connection.send_json(status, answer, {})


async def _handle(
    api: MessagesApi, incoming: IncomingRequest, what: str, key: str
) -> tuple[int, dict[str, Any]]:
    match incoming.method, what:
        case "PUT", "scripts":
            return 200, {"url": api.set_script(read_scripts(json.loads(incoming.body)), key=key)}
        case "GET", "requests":
            fields = {name: values[-1] for name, values in parse_qs(incoming.query).items()}
            count, patience_s = (
                int(fields.get("count", 0)),
                float(fields.get("timeoutS", _WAIT_TIMEOUT_S)),
            )
            requests = await api.wait_for_requests(count, key, timeout_s=patience_s)
            return 200, {"requests": [request.document() for request in requests]}
        case "GET", "repeated-requests":
            pairs = [
                [later.number, earlier.number] for later, earlier in api.repeated_requests(key)
            ]
            return 200, {"repeatedRequests": pairs}
        case "POST", "gates":
            api.release(key)
            return 200, {}
    return 404, {"problem": f"nothing is done at {incoming.method} {incoming.path}"}
