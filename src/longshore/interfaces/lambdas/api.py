"""api: API Gateway → the REST API; keys are needed as everywhere."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.api_gateway import handle_request
from longshore.interfaces.lambdas.app import open_app
from longshore.interfaces.lambdas.container import Container, LambdaContext, seconds_left

container = Container(open_app)


def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Answer one request."""
    within_s = seconds_left(context)
    return container.run(lambda app: handle_request(app, event, timeout_s=within_s), context)
