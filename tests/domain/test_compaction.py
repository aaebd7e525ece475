"""Cases H (triggers) and I to L (strategies): what is kept, and that a plan never reorders."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.compaction import (
    ActiveWindow,
    Any,
    Counters,
    SlidingWindow,
    Summarize,
    TokenBudget,
    Tokens,
    Turns,
    TurnWindow,
    plan,
)
from app.domain.errors import InvalidInput
from app.domain.messages import render
from tests.domain.logs import ids, log


def kept(strategy, line, **options):
    """What stays active of a log written as a line, and why nothing went."""
    events = log(line)
    events = [replace(event, tokens=len(render(event.message))) for event in events]
    window = ActiveWindow.of(events)
    made = plan(window, strategy.cut(window, **options))
    return ids(event for event in events if event.seq not in made.archive), made.reason


@pytest.mark.parametrize(
    ("trigger", "turns", "tokens", "fires"),
    [
        (Turns(turns=3), 3, 0, False),
        (Turns(turns=3), 4, 0, True),
        (Tokens(tokens=100), 0, 99, False),
        (Tokens(tokens=100), 0, 100, True),
        (Any(triggers=(Turns(turns=3), Tokens(tokens=100))), 3, 100, True),
        (Any(triggers=(Turns(turns=3), Tokens(tokens=100))), 3, 99, False),
    ],
)
def test_h1_h2_triggers(trigger, turns, tokens, fires):
    assert trigger.fires(Counters(active_turns=turns, active_tokens=tokens)) is fires


@pytest.mark.parametrize(
    "make",
    [
        lambda: Turns(turns=0),
        lambda: Tokens(tokens=-1),
        lambda: Any(triggers=()),
        lambda: SlidingWindow(max_events=0),
        lambda: TurnWindow(max_turns=0),
        lambda: TokenBudget(max_tokens=0),
        lambda: Summarize(max_events=2, overlap=2),
        lambda: Summarize(max_events=2, overlap=-1),
    ],
)
def test_h3_figures_that_make_no_sense_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


@pytest.mark.parametrize(
    ("line", "size", "expected"),
    [
        ("U1 U2 U3 U4 U5", 3, "U3 U4 U5"),
        ("U1 U2 U3", 3, "U1 U2 U3"),
        ("U1 A1 U2 A2 U3 A3", 3, "U3 A3"),
        ("U1 A1 U2 A2 A3 A4", 2, "U2 A2 A3 A4"),
        ("U1 A1 A2 A3", 2, "U1 A1 A2 A3"),
        ("U~ A~ U1 U2 U3 U4", 3, "U~ A~ U2 U3 U4"),
        ("S1 U1 A1 S2 U2 A2", 20, "U1 A1 S2 U2 A2"),
        ("U1 S1 A1 U2 A2 U3 A3", 2, "S1 U3 A3"),
        ("A1 A2 A3", 1, "A1 A2 A3"),
    ],
)
def test_i_sliding_window(line, size, expected):
    assert kept(SlidingWindow(max_events=size), line)[0] == expected


@pytest.mark.parametrize(
    ("line", "turns", "expected"),
    [
        ("U1 A1 U2 A2 U3 A3 U4 A4", 2, "U3 A3 U4 A4"),
        ("U1 A1c T1 U2 A2c T2", 1, "U2 A2c T2"),
        ("A0 U1 A1 U2 A2", 1, "A0 U2 A2"),
        ("U1 A1", 1, "U1 A1"),
        ("A1 A2", 1, "A1 A2"),
    ],
)
def test_j_turn_window(line, turns, expected):
    assert kept(TurnWindow(max_turns=turns), line)[0] == expected


@pytest.mark.parametrize(
    ("line", "tokens", "expected"),
    [
        ("U1 A1 U2 A2", 25, "U2 A2"),
        ("U1 A1 U2 A2", 42, "U1 A1 U2 A2"),
        ("U1 A1 U2 A2", 5, "U2 A2"),
        ("S1 U1 A1 U2 A2", 45, "S1 U2 A2"),
        ("S1 U1 A1 U2 A2", 5, "S1 U2 A2"),
        ("A1 A2", 5, "A1 A2"),
    ],
)
def test_k_token_budget(line, tokens, expected):
    assert kept(TokenBudget(max_tokens=tokens), line)[0] == expected


def test_reasons():
    assert kept(SlidingWindow(max_events=2), "U1 A1")[1] == "fits"
    assert kept(SlidingWindow(max_events=1), "A1 A2")[1] == "no_turn_start"
    assert kept(SlidingWindow(max_events=1), "U1 U2")[1] is None


def summarized(strategy, line, limit=10_000):
    cut = strategy.cut(ActiveWindow.of(log(line)), max_input_tokens=limit)
    return ids(cut.archived), ids(cut.kept)


def test_l_what_is_summarized():
    assert summarized(Summarize(max_events=3), "U1 U2 U3") == ("", "U1 U2 U3")
    assert summarized(Summarize(max_events=3), "U1 U2 U3 U4 U5 U6") == ("U1 U2 U3", "U4 U5 U6")
    assert summarized(Summarize(max_events=2, overlap=1), "U~ A~ U1 A1 U2 A2 U3 A3") == ("U1 A1 U2 A2", "U3 A3")
    assert summarized(Summarize(max_events=2), "U1 A1 A2 A3") == ("", "U1 A1 A2 A3")


def test_one_pass_takes_whole_turns_up_to_its_limit():
    line = "U1 A1 U2 A2 U3 A3 U4 A4"
    assert summarized(Summarize(max_events=2), line, limit=4)[0] == "U1 A1 U2 A2"
    assert summarized(Summarize(max_events=2), line, limit=1)[0] == "U1 A1"


lines = st.lists(st.sampled_from(["U", "A", "S", "U~", "A~"]), max_size=16).map(
    lambda kinds: " ".join(f"{kind[0]}{place}{kind[1:]}" for place, kind in enumerate(kinds))
)
strategies = st.one_of(
    st.integers(1, 8).map(lambda n: SlidingWindow(max_events=n)),
    st.integers(1, 4).map(lambda n: TurnWindow(max_turns=n)),
    st.integers(1, 80).map(lambda n: TokenBudget(max_tokens=n)),
)


@given(lines, strategies)
def test_a_cut_keeps_the_newest_turn_and_splits_none(line, strategy):
    window = ActiveWindow.of(log(line))
    cut = strategy.cut(window)
    made = plan(window, cut)
    real = list(window.real)
    assert sorted([*cut.archived, *cut.kept], key=lambda event: event.seq) == real, "nothing is lost or reordered"
    assert {event.seq for event in window.superseded} <= set(made.archive)
    assert window.pinned is None or window.pinned.seq not in made.archive
    starts = [event for event in real if event.starts_turn]
    if starts:
        assert all(event in cut.kept for event in real[real.index(starts[-1]) :])
    if cut.archived:
        follower = real[real.index(cut.archived[-1]) + 1]
        assert follower.starts_turn, "what stays begins with a turn"
