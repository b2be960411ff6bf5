"""Faults in what the server does with requests, and in the client that sends them."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace

_REST = "interfaces/rest"
_PARSING = f"{_REST}/test_parsing.py"
_SERVER = f"{_REST}/test_server.py"
_CLIENT = "interfaces/test_http_client.py"

_fault = partial(Fault, part=Part.REQUESTS)

REQUEST_FAULTS = (
    _fault(
        name="each name of an object is counted among all names",
        at="interfaces.document_files:_unique_object",
        do=(
            Replace("Counter()", "[name for name, _ in pairs]"),
            Replace("> counts", "counts.count(name) > 1"),
        ),
        caught_by=f"{_PARSING}::test_the_search_for_a_repeated_name_is_linear",
    ),
    _fault(
        name="a compressed body is read",
        at="interfaces.rest.requests:_read_body",
        do=Condition("encoding", False),
        caught_by=f"{_PARSING}::test_a_compressed_body_is_refused",
    ),
    _fault(
        name="the values of a body are not counted",
        at="interfaces.rest.requests:_parse_now",
        do=Condition("has_more_values()", False),
        caught_by=f"{_PARSING}::test_a_body_with_too_many_values_is_refused",
    ),
    _fault(
        name="a long body is parsed on the event loop",
        at="interfaces.rest.requests:_parse",
        do=Condition("_PARSED_ON_LOOP_BYTES", True),
        caught_by=f"{_PARSING}::test_a_long_body_is_parsed_in_a_thread",
    ),
    _fault(
        name="the bodies of all requests together are not bounded",
        at="interfaces.rest.requests:_read_body",
        do=Condition("bytes_in_flight", False),
        caught_by=f"{_PARSING}::test_the_bodies_of_all_requests_together_are_bounded",
    ),
    _fault(
        name="a request with two lengths is answered",
        at="interfaces.rest.middleware:HostCheckMiddleware._problem_of",
        do=Condition("'content-length'", False),
        caught_by=f"{_PARSING}::"
        "test_a_request_whose_length_is_ambiguous_is_refused_and_its_connection_closed",
    ),
    _fault(
        name="the access log is always written",
        at="interfaces.rest.middleware:HostCheckMiddleware.__call__",
        do=Condition("_access_log", False),
        caught_by=f"{_SERVER}::test_requests_are_not_logged_by_default",
    ),
    _fault(
        name="there is no access log",
        at="interfaces.rest.app:create_app",
        do=Argument("add_middleware()", "access_log", "False", nth=2),
        caught_by=f"{_SERVER}::test_the_access_log_has_one_entry_for_each_request_and_never_a_key",
    ),
    _fault(
        name="unknown keys of an address are only refused",
        at="interfaces.rest.auth:require_scope.authenticate",
        do=Replace("authenticate_from()", "api_keys.authenticate($2)"),
        caught_by=f"{_SERVER}::test_unknown_keys_of_an_address_get_a_429_with_retry_after",
    ),
    _fault(
        name="refused keys are not logged",
        at="services.api_keys:ApiKeys._log_failure",
        do=Drop("warning()"),
        caught_by="unit/services/test_api_keys.py::"
        "test_unknown_keys_are_logged_once_a_minute_without_the_keys",
    ),
    _fault(
        name="built-in definitions are never switched off",
        at="interfaces.rest.auth:require_scope.authenticate",
        do=Argument("replace()", "builtins", None),
        caught_by=f"{_REST}/test_limited_keys.py::"
        "test_the_built_in_definitions_can_be_switched_off_for_the_api",
    ),
    _fault(
        name="a client follows redirects with its key",
        at="interfaces.client.http_client:open_http_client",
        do=Argument("AsyncClient()", "follow_redirects", "True"),
        caught_by=f"{_CLIENT}::test_a_redirect_is_an_error_and_is_not_followed",
    ),
    _fault(
        name="a client uses any proxy of the environment",
        at="interfaces.client.http_client:open_http_client",
        do=Argument("AsyncClient()", "trust_env", None),
        caught_by=f"{_CLIENT}::test_a_proxy_of_the_environment_is_used_only_where_that_is_allowed",
    ),
)
