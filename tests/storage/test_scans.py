"""A reader who gave up leaves no work behind that others would wait for."""

import time

import pytest

from app.domain.filters import EventFilter
from app.storage.scans import _matches
from tests.domain.logs import said


def test_a_pattern_is_not_applied_after_the_deadline():
    pattern = EventFilter(pattern="a")
    with pytest.raises(TimeoutError):
        _matches(said("a"), pattern, time.monotonic() - 1)
    assert len(_matches(said("a", "b"), pattern, time.monotonic() + 60)) == 1
