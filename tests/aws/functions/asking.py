"""Requests as an API Gateway hands them to the api function, and what it answers."""

import base64
import json
from typing import Any

from longshore.core.keys import Scope
from tests.aws.functions.house import TENANT, House


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


def body_of(answer: dict[str, Any]) -> bytes:
    text: str = answer["body"]
    return base64.b64decode(text) if answer["isBase64Encoded"] else text.encode()


def ask(house: House, event: dict[str, Any]) -> tuple[int, Any]:
    answer = house.invoke("api", event)
    return answer["statusCode"], json.loads(body_of(answer))


def a_key(house: House) -> str:
    created = house.do(
        lambda all_: all_.access.create(TENANT, name="test", scopes=(Scope.ADMIN,), by="test")
    )
    return created[1]
