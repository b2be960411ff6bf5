"""The whole OpenAPI document, called with valid and with invalid values."""

from collections.abc import Iterator

import httpx2
import pytest
from schemathesis import GenerationMode

from tests.interfaces.rest.schema_fuzz import FuzzedServer, fuzz_routes

# Examples of a route in each of four passes; ``schema_fuzz`` as a program can run more.
EXAMPLES = 5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    with FuzzedServer(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.mark.parametrize("existing_ids", [False, True], ids=["any-ids", "existing-ids"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_gets_a_server_error_or_an_answer_that_is_not_documented(
    served: FuzzedServer, mode: GenerationMode, existing_ids: bool
) -> None:
    answers = fuzz_routes(served, mode, EXAMPLES, existing_ids=existing_ids)

    assert answers.total() > EXAMPLES
    assert set(answers) >= ({200, 409, 422} if existing_ids else {200, 404, 422})


def test_the_document_describes_every_route_with_words(served: FuzzedServer) -> None:
    document = httpx2.get(
        f"{served.address}/v1/openapi.json", headers={"x-api-key": served.key}
    ).json()

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            if path != "/live":
                assert operation["security"], (method, path)
