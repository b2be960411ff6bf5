"""api: API Gateway → the REST API; keys are needed as everywhere."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.app import opened_app
from longshore.interfaces.lambdas.container import Container, Context, seconds_left
from longshore.interfaces.lambdas.gateway import answer_to

container = Container(opened_app)


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Answer one request."""
    within_s = seconds_left(context)
    return container.run(lambda app: answer_to(app, event, within_s=within_s), context)
