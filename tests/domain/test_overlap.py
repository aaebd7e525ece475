"""Where a resent conversation overlaps the history, against the rule as the specification words it."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.overlap import Compared, Overlap, find_overlap


def plain(line):
    return [Compared(likeness=(name, "", ())) for name in line]


def marked(line):
    """A lower-case letter needs no counterpart."""
    return [Compared(likeness=(name.upper(), "", ()), optional=name.islower()) for name in line]


def by_the_rule(history, resent):
    """(a), (b) and (c) of the specification, word by word, for messages that all need a counterpart."""
    for start in range(len(resent) - len(history), -1, -1):
        if resent[start : start + len(history)] == history:
            return Overlap(start=start, end=start + len(history))
    for length in range(min(len(history), len(resent)), 0, -1):
        if history[-length:] == resent[:length]:
            return Overlap(start=0, end=length)
    if any(history[start : start + len(resent)] == resent for start in range(len(history))):
        return Overlap(start=0, end=len(resent))
    return None


def lines(alphabet, **sizes):
    return st.text(alphabet, **sizes)


@settings(max_examples=1000)
@given(lines("ABC", max_size=7), lines("ABC", min_size=1, max_size=7))
def test_the_overlap_is_that_of_the_rule(history, resent):
    found, expected = find_overlap(plain(history), plain(resent)), by_the_rule(history, resent)
    assert (found and (found.start, found.end)) == (expected and (expected.start, expected.end))


def subsets(line):
    """The line without some of what needs no counterpart, in upper case, with the places that are left."""
    optional = [place for place, name in enumerate(line) if name.islower()]
    for size in range(len(optional) + 1):
        for gone in combinations(optional, size):
            kept = [place for place in range(len(line)) if place not in gone]
            yield "".join(line[place] for place in kept).upper(), kept


@settings(max_examples=400)
@given(lines("ABab", min_size=1, max_size=5), lines("ABab", min_size=1, max_size=5))
def test_what_needs_no_counterpart_may_have_one(history, resent):
    """Some overlap is found exactly when there is one after leaving out what needs no counterpart."""
    found = find_overlap(marked(history), marked(resent))
    possible = [
        by_the_rule(one, other)
        for one, _ in subsets(history)
        for other, _ in subsets(resent)
        if one and other and by_the_rule(one, other)
    ]
    assert bool(found and found.pairs) == bool(possible)
    if found is not None and found.pairs:
        assert 0 <= found.start < found.end <= len(resent)


@settings(max_examples=400)
@given(lines("ABab", min_size=1, max_size=6), lines("XY", max_size=3))
def test_the_whole_history_is_found_at_the_end_of_what_is_resent(history, before):
    found = find_overlap(marked(history), marked(before + history))
    assert found is not None
    assert (found.start, found.end) == (len(before), len(before) + len(history))


@given(lines("ABC", min_size=1, max_size=8), st.data())
def test_a_window_that_the_client_kept_ends_where_the_history_ends(history, data):
    start = data.draw(st.integers(0, len(history) - 1))
    found = find_overlap(plain(history), plain(history[start:]))
    assert (found.start, found.end) == (0, len(history) - start)


@pytest.mark.parametrize(
    ("history", "resent", "overlap"),
    [
        pytest.param("AB", "ABAB", (2, 4), id="a-the-last-of-two"),
        pytest.param("ABAB", "AB", (0, 2), id="b-longest-suffix"),
        pytest.param("XABAB", "ABAB", (0, 4), id="b-longer-is-better-than-later"),
        pytest.param("ABX", "AB", (0, 2), id="c-within-the-history"),
        pytest.param("AB", "CD", None, id="nothing-in-common"),
        pytest.param("", "CD", (2, 2), id="no-history-everything-goes-before"),
        pytest.param("AbC", "AC", (0, 2), id="history-may-lack"),
        pytest.param("AC", "AbC", (0, 3), id="resent-may-lack"),
        pytest.param("ab", "AB", (0, 2), id="optional-but-there"),
        pytest.param("Ab", "AxB", (0, 3), id="matched-rather-than-left-out"),
    ],
)
def test_the_rules_in_their_order(history, resent, overlap):
    found = find_overlap(marked(history), marked(resent))
    assert (found and (found.start, found.end)) == overlap


class Counted(tuple):
    """A likeness that counts how often it is compared."""

    __slots__ = ()
    __hash__ = tuple.__hash__
    count = 0

    def __eq__(self, other):
        Counted.count += 1
        return tuple.__eq__(self, other)


@pytest.mark.parametrize(
    ("history", "resent"),
    [
        pytest.param("AB" * 300, "AB" * 600, id="twice-as-much-resent"),
        pytest.param("AB" * 300, "AB" * 300 + "C", id="one-more"),
        pytest.param("AB" * 300, "AB" * 299 + "C", id="one-that-differs"),
        pytest.param("A" * 600 + "B", "A" * 600, id="all-alike"),
    ],
)
def test_a_conversation_that_repeats_itself_is_compared_in_linear_time(history, resent):
    Counted.count = 0
    find_overlap(*([Compared(likeness=Counted((name, "", ()))) for name in line] for line in (history, resent)))
    assert Counted.count < 20 * (len(history) + len(resent))
