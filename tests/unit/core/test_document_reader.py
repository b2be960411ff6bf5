"""The number of values of a JSON value is limited."""

import pytest

from longshore.core.document_reader import check_json


def test_as_many_values_as_the_limit_are_accepted() -> None:
    check_json([1, [2]], max_values=4)


def test_more_values_than_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 4 values"):
        check_json([1, [2, 3]], max_values=4)
