"""JSON is strict, exact and bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import json_values
from app.domain.json_values import InvalidJson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_value_comes_back_as_it_went_in(value):
    assert json.loads(json_values.encode(json_values.decode(json.dumps(value)))) == value


@given(values)
def test_equal_values_have_equal_digests_however_they_are_written(value):
    plain = json_values.decode(json.dumps(value))
    sorted_and_escaped = json_values.decode(json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1))
    assert json_values.digest(plain) == json_values.digest(sorted_and_escaped)


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("1e2", "100"), ("0", "-0.0"), ("1e400", "10e399")])
def test_numbers_are_compared_by_value(one, other):
    assert json_values.digest(json_values.decode(one)) == json_values.digest(json_values.decode(other))


@pytest.mark.parametrize(
    ("one", "other"), [("1", "true"), ("0", "false"), ("1", '"1"'), ("null", "[]"), ('{"a":null}', "{}")]
)
def test_different_values_have_different_digests(one, other):
    assert json_values.digest(json_values.decode(one)) != json_values.digest(json_values.decode(other))


@pytest.mark.parametrize("text", ["1e400", "123456789012345678901234567890.123456789", "0.1", "1.0"])
def test_numbers_keep_every_digit(text):
    assert json_values.encode(json_values.decode(text)).lower().replace("+", "") == text


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "", "{", "[1,]", "01", "'a'", '{"a":1} x', '"\t"', b"\xff"])
def test_what_is_not_strict_json_is_refused(text):
    with pytest.raises(InvalidJson):
        json_values.decode(text)


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"a":["x\udfff"]}', r'{"\ud800":1}'])
def test_a_lone_surrogate_is_refused_by_name(text):
    with pytest.raises(InvalidJson, match="surrogate"):
        json_values.decode(text)


def test_nesting_is_bounded():
    assert json_values.decode("[" * 64 + "]" * 64)
    for depth in (65, 5_000, 500_000):
        with pytest.raises(InvalidJson, match="64 levels"):
            json_values.decode("[" * depth + "]" * depth)
