"""The whole OpenAPI document, called with whatever fits it and whatever does not."""

from collections.abc import Iterator

import httpx
import pytest
from schemathesis import GenerationMode

from tests.interfaces.rest.schema_fuzz import FuzzedServer, fuzz_routes

# So many a route in each of four passes; ``schema_run`` does it at length.
EXAMPLES = 5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    with FuzzedServer(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.mark.parametrize("of_what_is_there", [False, True], ids=["of-anything", "of-what-is-there"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_gets_a_server_error_or_an_answer_that_is_not_documented(
    served: FuzzedServer, mode: GenerationMode, of_what_is_there: bool
) -> None:
    answers = fuzz_routes(served, mode, EXAMPLES, existing_ids=of_what_is_there)

    assert answers.total() > EXAMPLES
    assert set(answers) >= ({200, 409, 422} if of_what_is_there else {200, 404, 422})


def test_the_document_describes_every_route_with_words(served: FuzzedServer) -> None:
    document = httpx.get(
        f"{served.address}/v1/openapi.json", headers={"x-api-key": served.key}
    ).json()

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            if path != "/live":
                assert operation["security"], (method, path)
