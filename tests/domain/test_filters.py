"""Cases A (validation), B (merge), C (matching) and D (windows, pages) of the specification."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidInput
from app.domain.filters import ACTIVE, EventFilter
from tests.domain.logs import EPOCH, event, ids, log, said


@pytest.mark.parametrize("blank", ["", "   ", "\t\n"])
def test_a1_a_blank_keyword_is_no_criterion(blank):
    assert EventFilter(keyword=blank) == EventFilter()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"last_n": 0}, "last_n"),
        ({"last_n": -1}, "last_n"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": -1}, "page_size"),
        ({"page": -1, "page_size": 5}, "page"),
        ({"page": 0}, "page"),
        ({"last_n": 3, "page_size": 5}, "last_n"),
        ({"keywords": ("x",) * 21}, "keywords"),
        ({"keyword": "x" * 1001}, "keyword"),
        ({"keyword": "a\0b"}, "keyword"),
        ({"pattern": "x" * 1001}, "pattern"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": r"(?<=a)b"}, "pattern"),
    ],
)
def test_a2_a_wrong_criterion_is_refused_by_its_name(fields, named):
    with pytest.raises(InvalidInput) as caught:
        EventFilter(**fields)
    assert caught.value.faults[0].loc == (named,)


def test_a3_a_page_size_alone_means_the_first_page():
    assert EventFilter(page_size=5).page == 0


def test_a4_no_types_are_no_criterion():
    assert EventFilter(types=frozenset()) == EventFilter()


def test_a5_blank_keywords_are_dropped():
    assert EventFilter(keywords=("spring", "  ", "")).keywords == ("spring",)
    assert EventFilter(keywords=(" ", ""), match_mode="all") == EventFilter()


def test_a6_the_match_mode_belongs_to_keywords():
    assert EventFilter(keywords=("x",)).match_mode == "any"
    assert EventFilter(match_mode="all").match_mode is None


def test_b1_the_second_window_wins():
    assert EventFilter(last_n=10).merge(EventFilter(last_n=3)).last_n == 3
    assert EventFilter(last_n=5).merge(EventFilter()).last_n == 5


def test_b2_criteria_of_the_second_win():
    base = EventFilter(types=frozenset({"user"}), keyword="a", from_=EPOCH, pattern="x")
    other = EventFilter(types=frozenset({"tool"}), keyword="b", to=EPOCH)
    assert base.merge(other) == replace(other, from_=EPOCH, pattern="x")


def test_b3_flags_are_united():
    merged = EventFilter(exclude_synthetic=True).merge(EventFilter(exclude_archived=True))
    assert merged.exclude_synthetic
    assert merged.exclude_archived


def test_b4_a_page_replaces_a_window():
    merged = EventFilter(last_n=20).merge(EventFilter(keyword="spring", page=1, page_size=5))
    assert merged == EventFilter(keyword="spring", page=1, page_size=5)


def test_b5_a_window_replaces_a_page():
    assert EventFilter(page=1, page_size=5).merge(EventFilter(last_n=3)) == EventFilter(last_n=3)


def test_b6_the_active_view_keeps_the_window():
    assert EventFilter(last_n=7).merge(ACTIVE) == EventFilter(last_n=7, exclude_archived=True)


def test_keywords_and_their_mode_move_together():
    merged = EventFilter(keywords=("a",), match_mode="all").merge(EventFilter(keywords=("b", "c")))
    assert (merged.keywords, merged.match_mode) == (("b", "c"), "any")


@pytest.mark.parametrize(
    ("term", "matches"), [("spring ai", True), ("AWESOME", True), ("is", True), ("memory", False)]
)
def test_c1_a_keyword_is_a_caseless_substring(term, matches):
    assert bool(EventFilter(keyword=term).apply(said("Spring AI is awesome"))) is matches


@pytest.mark.parametrize("f", [{"keyword": "x"}, {"keywords": ("x",)}, {"pattern": ".*"}, {"pattern": ".+"}])
def test_c2_events_without_text_never_match(f):
    log_without_text = [*said(""), *said(None, role="assistant")]
    assert EventFilter(**f).apply(log_without_text) == []


def test_c3_any_and_all():
    texts = said("actually, use this instead", "actually, that's fine", "no")
    terms = ("actually", "instead")
    assert ids(EventFilter(keywords=terms, match_mode="all").apply(texts)) == "0"
    assert ids(EventFilter(keywords=terms).apply(texts)) == "0 1"


@pytest.mark.parametrize(
    ("term", "text", "matches"),
    [
        ("100%", "100% done", True),
        ("100%", "1000 done", False),
        ("_case", "snake_case", True),
        ("_case", "snakeXcase", False),
        ("a\\b", "a\\b", True),
        ("a\\b", "ab", False),
        ("ÉCOLE", "école", True),
        ("STRASSE", "Straße", True),
        ("e\u0301", "caf\u00e9", True),
        ("\ufffd", "nul \0 here", True),
    ],
)
def test_c4_nothing_in_a_term_is_special(term, text, matches):
    assert bool(EventFilter(keyword=term).apply(said(text))) is matches


def test_c5_special_characters_with_any_and_all():
    texts = said("100% done", "snake_case", "100% snake_case", "nothing")
    terms = ("0%", "e_c")
    assert ids(EventFilter(keywords=terms).apply(texts)) == "0 1 2"
    assert ids(EventFilter(keywords=terms, match_mode="all").apply(texts)) == "2"


def test_c6_instants_are_inclusive():
    events = said("a", "b", "c")
    second = EPOCH + timedelta(seconds=1)
    assert ids(EventFilter(from_=second).apply(events)) == "1 2"
    assert ids(EventFilter(to=second).apply(events)) == "0 1"
    assert ids(EventFilter(from_=second, to=second).apply(events)) == "1"


def test_c7_patterns_are_case_sensitive_and_find():
    texts = said("we decided to go", "we haven't decided", "We Decided")
    assert ids(EventFilter(pattern=r"\bwe decided\b").apply(texts)) == "0"
    assert ids(EventFilter(pattern=r"(?i)we decided").apply(texts)) == "0 2"


def test_c8_keyword_and_pattern_both_have_to_hold():
    texts = said("we decided on Spring", "we decided", "Spring")
    assert ids(EventFilter(pattern="we decided", keyword="spring").apply(texts)) == "0"


@pytest.mark.parametrize(("size", "expected"), [(2, "U4 U5"), (5, "U1 U2 U3 U4 U5"), (9, "U1 U2 U3 U4 U5")])
def test_d1_a_window_is_the_newest(size, expected):
    assert ids(EventFilter(last_n=size).apply(log("U1 U2 U3 U4 U5"))) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(2, "U2 A2c T2 A2"), (3, "U2 A2c T2 A2"), (4, "U2 A2c T2 A2"), (5, "U1 A1 U2 A2c T2 A2")],
)
def test_d2_a_window_never_separates_a_call_from_its_result(size, expected):
    assert ids(EventFilter(last_n=size).apply(log("U1 A1 U2 A2c T2 A2"))) == expected


def test_d3_a_summary_comes_with_its_shadow_prompt():
    assert ids(EventFilter(last_n=3).apply(log("U1 A1 U~ A~ U2 A2"))) == "U~ A~ U2 A2"


@pytest.mark.parametrize("line", ["S1 A1 A2 A3", "A1 A2 A3 A4"])
def test_d4_without_a_turn_start_before_it_the_window_is_plain(line):
    assert ids(EventFilter(last_n=2).apply(log(line))) == " ".join(line.split()[-2:])


def test_d5_hidden_user_events_start_no_turn():
    f = EventFilter(types=frozenset({"assistant", "tool"}), last_n=2)
    assert ids(f.apply(log("U1 A1c T1 A1 U2 A2"))) == "A1 A2"


@pytest.mark.parametrize("f", [{"keyword": "a"}, {"keywords": ("a",)}, {"pattern": "A"}])
def test_d6_a_text_search_is_never_extended(f):
    assert ids(EventFilter(last_n=2, **f).apply(log("U1 A1 A2 A3"))) == "A2 A3"


def test_d7_the_active_window_never_reaches_back_into_archived_events():
    assert ids(EventFilter(last_n=2).merge(ACTIVE).apply(log("U1* A1* A2 A3 A4"))) == "A3 A4"
    assert ids(EventFilter(last_n=2).merge(ACTIVE).apply(log("U1* U2 A2 A3 A4"))) == "U2 A2 A3 A4"


def test_d8_pages():
    seven = log("U1 U2 U3 U4 U5 U6 U7")
    pages = [ids(EventFilter(page=page, page_size=3).apply(seven)) for page in (0, 1, 2, 2147483647)]
    assert pages == ["U1 U2 U3", "U4 U5 U6", "U7", ""]


def test_d9_patterns_with_pages():
    texts = said("entry1", "entry2", "nomatch", "entry3", "entry4", "entry5", "entry6")
    pages = [EventFilter(pattern=r"^entry\d", page=page, page_size=2).apply(texts) for page in range(4)]
    assert [[event.text for event in page] for page in pages] == [
        ["entry1", "entry2"],
        ["entry3", "entry4"],
        ["entry5", "entry6"],
        [],
    ]


def test_d10_across_sessions_the_order_is_by_instant():
    def at(second: int, session: str):
        return replace(
            event(f"{second}", 0, {"role": "user", "content": "x"}),
            session_id=session,
            timestamp=EPOCH + timedelta(seconds=second),
        )

    events = [at(10, "s1"), at(30, "s1"), at(20, "s2"), at(40, "s2")]
    assert ids(EventFilter().apply_across(events)) == "10 20 30 40"
    assert ids(EventFilter(page=1, page_size=3).apply_across(events)) == "40"
    assert ids(EventFilter(last_n=1).apply_across(events)) == "40"


@given(st.lists(st.sampled_from(["U", "A", "S", "T", "U~", "A~"]), max_size=20), st.integers(1, 25))
def test_any_window_starts_a_turn_where_one_can(names, size):
    events = log(" ".join(f"{name[0]}{place}{name[1:]}" for place, name in enumerate(names)))
    window = EventFilter(last_n=size).apply(events)
    assert list(window) == events[len(events) - len(window) :], "a window is the end of the log"
    assert len(window) >= min(size, len(events))
    if len(window) < len(events):
        starts = [event.starts_turn for event in events[: len(events) - len(window) + 1]]
        assert window[0].starts_turn or not any(starts)
        assert len(window) == size or not any(event.starts_turn for event in window[1 : len(window) - size + 1])


filters = st.builds(
    EventFilter,
    keyword=st.sampled_from([None, "a", "b"]),
    types=st.sampled_from([None, frozenset({"user"}), frozenset({"tool"})]),
    exclude_synthetic=st.booleans(),
    last_n=st.sampled_from([None, 1, 2]),
)


@given(filters, filters, filters)
def test_merging_is_associative_and_has_a_neutral_element(one, two, three):
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(EventFilter()) == one == EventFilter().merge(one)
