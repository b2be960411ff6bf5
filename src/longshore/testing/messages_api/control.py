"""Control: scripts and requests of a server that runs in another process, over HTTP.

=======================================  ==========================================================
``PUT /_control/scripts[/KEY]``          play a script (see ``reading``); answers with its base URL
``GET /_control/requests[/KEY]``         what was asked; with ``?count=N&timeoutS=S``, when so many
``GET /_control/asked-again[/KEY]``      numbers of requests for an answer that had been given
``POST /_control/gates/NAME``            let the answers go that wait at a gate
=======================================  ==========================================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from longshore.testing.messages_api.http import Connection, Incoming
from longshore.testing.messages_api.reading import read_scripts

if TYPE_CHECKING:
    from longshore.testing.messages_api.server import MessagesApi

CONTROL = "/_control/"
_PATIENCE_S = 30.0


async def answer_control(api: MessagesApi, connection: Connection, incoming: Incoming) -> None:
    """Do what was asked for, or say why not."""
    what, _, key = incoming.path.removeprefix(CONTROL).partition("/")
    try:
        status, answer = await _act(api, incoming, what, key)
    except TimeoutError as late:
        status, answer = 408, {"problem": str(late)}
    # Of what was sent: a script that is none, a count that is no number.
    except ValueError as problem:
        status, answer = 400, {"problem": str(problem)}
    await connection.send_json(status, answer, {})


async def _act(
    api: MessagesApi, incoming: Incoming, what: str, key: str
) -> tuple[int, dict[str, Any]]:
    match incoming.method, what:
        case "PUT", "scripts":
            return 200, {"url": api.play(read_scripts(json.loads(incoming.body)), key=key)}
        case "GET", "requests":
            given = {name: values[-1] for name, values in parse_qs(incoming.query).items()}
            count, patience_s = (
                int(given.get("count", 0)),
                float(given.get("timeoutS", _PATIENCE_S)),
            )
            requests = await api.wait_for_requests(count, key, timeout_s=patience_s)
            return 200, {"requests": [request.document() for request in requests]}
        case "GET", "asked-again":
            pairs = [[later.number, earlier.number] for later, earlier in api.asked_again(key)]
            return 200, {"askedAgain": pairs}
        case "POST", "gates":
            api.release(key)
            return 200, {}
    return 404, {"problem": f"nothing is done at {incoming.method} {incoming.path}"}
