"""JSON as it is read from files: nothing that is not in the standard, and no endless nesting."""

import pytest

from bitbayes.io.strict_json import parse_json


def test_plain_json_is_read():
    assert parse_json('{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "9" * 5000, "{", "1e999"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"finite|nested|digits|Expecting"):
        parse_json(text)
