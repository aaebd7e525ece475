"""JSON out of files, a piece at a time, whatever is in them."""

import io
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import json_values
from app.importing.reading import MAX_LENGTH, elements, lines, whole
from app.importing.records import BadRecord

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Slow(io.BytesIO):
    """A file that is read in small pieces, so that they end anywhere."""

    def __init__(self, data, size):
        super().__init__(data)
        self._size = size

    def read(self, _=-1):
        return super().read(self._size)


def read(found):
    return [(item.place, item.reason if isinstance(item, BadRecord) else item.value) for item in found]


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_no_matter():
    source = io.BytesIO(b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n[2]\r\n"three"')
    assert read(lines(source)) == [("1", {"a": 1}), ("4", [2]), ("5", "three")]


@pytest.mark.parametrize("line", [b"{", b"nonsense", b'{"a":NaN}', b'"', b"[" * 100_000, b"1e99999999999999999999"])
def test_a_bad_line_is_told_with_its_number_and_the_rest_is_read(line):
    found = read(lines(io.BytesIO(b"1\n" + line + b"\n3\n")))
    assert found[0] == ("1", 1)
    assert found[-1] == ("3", 3)
    place, reason = found[1]
    assert place == "2"
    assert reason.endswith(".")


def test_a_line_that_is_too_long_is_skipped():
    found = read(lines(io.BytesIO(b"1\n" + b"7" * (MAX_LENGTH + 1) + b"\n3")))
    assert found == [("1", 1), ("2", "This is over 67,108,864 bytes long."), ("3", 3)]


def test_numbers_are_kept_as_they_are_written():
    text = b"[1.10,12345678901234567890123,1E+400,-0.0,18446744073709551615]"
    value = whole(io.BytesIO(text)).value
    assert value == [Decimal("1.10"), 12345678901234567890123, Decimal("1E+400"), 0, 18446744073709551615]
    assert json_values.encode(value).encode() == text


def test_what_is_no_text_is_left_to_be_found_in_its_message():
    found = read(lines(io.BytesIO(b'{"a":"\\ud800"}\n{"a":"\xff"}\n')))
    assert found == [("1", {"a": "\ud800"}), ("2", {"a": "\udcff"})]


@given(st.lists(values, max_size=5), st.integers(1, 9), st.sampled_from([None, 1]), st.booleans())
def test_the_elements_of_a_list_are_read_one_by_one(expected, size, indent, is_ascii):
    data = json.dumps(expected, indent=indent, ensure_ascii=is_ascii).encode()
    assert read(elements(Slow(data, size))) == [(f"[{index}]", value) for index, value in enumerate(expected)]


@pytest.mark.parametrize("end", ['{"b":', '{"b":"', "{]", ""])
def test_a_list_that_is_cut_off_or_broken_is_read_up_to_there(end):
    found = read(elements(io.BytesIO(b'\xef\xbb\xbf[{"a":1},\n' + end.encode())))
    assert found[0] == ("[0]", {"a": 1})
    (place, reason) = found[1]
    assert place == "[1]"
    assert "broken or cut off" in reason
    assert len(found) == 2
