"""Requests as an API Gateway hands them to the api function, and what it answers."""

import base64
import json
from typing import Any

from longshore.core.api_keys import ApiScope
from tests.aws.functions.installation import TENANT, FunctionInstallation


def request(
    method: str, path: str, body: Any = None, *, stage: str = "$default", **headers: str
) -> dict[str, Any]:
    """As an HTTP API hands it over, payload format 2.0."""
    raw_path, _, query = path.partition("?")
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": raw_path if stage == "$default" else f"/{stage}{raw_path}",
        "rawQueryString": query,
        "headers": {"host": "abc.execute-api.eu-central-1.amazonaws.com", **headers},
        "requestContext": {
            "apiId": "abc",
            "domainName": "abc.execute-api.eu-central-1.amazonaws.com",
            "http": {"method": method, "path": raw_path, "sourceIp": "192.0.2.1"},
            "requestId": "gateway-1",
            "stage": stage,
        },
        "isBase64Encoded": False,
    }
    if body is not None:
        event["body"] = json.dumps(body)
        event["headers"]["content-type"] = "application/json"
    return event


def response_body(response: dict[str, Any]) -> bytes:
    text: str = response["body"]
    return base64.b64decode(text) if response["isBase64Encoded"] else text.encode()


def send_request(installation: FunctionInstallation, event: dict[str, Any]) -> tuple[int, Any]:
    answer = installation.invoke("api", event)
    return answer["statusCode"], json.loads(response_body(answer))


def create_api_key(installation: FunctionInstallation) -> str:
    created = installation.run(
        lambda all_: all_.api_keys.create(TENANT, name="test", scopes=(ApiScope.ADMIN,), by="test")
    )
    return created[1]
