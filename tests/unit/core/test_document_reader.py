"""Values of a document are limited in number, and messages about them are plain."""

import pytest

from longshore.core.document_reader import check_json, plain_problem


def test_as_many_values_as_the_limit_are_accepted() -> None:
    check_json([1, [2]], max_values=4)


def test_more_values_than_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 4 values"):
        check_json([1, [2, 3]], max_values=4)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Input should be a valid integer, unable to parse string as an integer",
            "must be a whole number",
        ),
        ("Value error, 'soon' is not a duration", "'soon' is not a duration"),
        ("Input should be greater than or equal to 1", "must be greater than or equal to 1"),
    ],
)
def test_a_message_of_pydantic_is_in_plain_words(message: str, expected: str) -> None:
    assert plain_problem(message) == expected
