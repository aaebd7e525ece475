"""Which messages are stored, and how filters compose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.message_filters import AcceptAll, AllOf, AnyOf, Containing, Not, OfTypes, SkipEmpty
from tests.domain.chats import assistant, call, result, user

PART = {"type": "image_url", "image_url": {"url": "x"}}
MESSAGES = [
    user(""),
    user("Straße"),
    user([{"type": "text", "text": "one"}, PART, {"type": "text", "text": "STRASSE"}]),
    user([PART]),
    assistant(None),
    assistant("  "),
    assistant([]),
    assistant([{"type": "text", "text": "\n"}]),
    assistant([{"type": "refusal", "refusal": "no"}]),
    assistant(None, refusal="no"),
    assistant("yes"),
    assistant("", tool_calls=[]),
    call("a"),
    call("a", content="Straße"),
    result("a", ""),
    {"role": "system", "content": "s"},
    {"role": "developer", "content": "STRASSE"},
]


@pytest.mark.parametrize("content", ["", "  ", "\n\t", None, [], [{"type": "text", "text": " "}]])
@pytest.mark.parametrize("more", [{}, {"tool_calls": []}, {"tool_calls": None}, {"refusal": None}, {"refusal": ""}])
def test_m1_a_reply_that_says_nothing_is_skipped(content, more):
    assert not SkipEmpty().accepts(assistant(content, **more))
    assert AcceptAll().accepts(assistant(content, **more))


@pytest.mark.parametrize(
    "message",
    [
        user(""),
        user("  "),
        result("a", ""),
        call("a"),
        assistant(None, refusal="no"),
        assistant([{"type": "refusal", "refusal": "no"}]),
        assistant([PART]),
        {"role": "system", "content": ""},
    ],
)
def test_m1_all_else_is_stored(message):
    assert SkipEmpty().accepts(message)


def test_m2_types():
    accepted = OfTypes(types=frozenset({"user", "assistant"}))
    kept = {one["role"] for one in MESSAGES if accepted.accepts(one)}
    assert kept == {"user", "assistant"}
    assert OfTypes(types=frozenset({"system"})).accepts({"role": "developer", "content": "s"})
    assert not any(OfTypes(types=frozenset()).accepts(one) for one in MESSAGES)


@pytest.mark.parametrize("term", ["strasse", "STRASSE", "Straße", "rass"])
def test_m2_contains_is_caseless(term):
    assert [place for place, one in enumerate(MESSAGES) if Containing(term=term).accepts(one)] == [1, 2, 13, 16]


simple = st.sampled_from(
    [
        AcceptAll(),
        SkipEmpty(),
        Containing(term="ss"),
        OfTypes(types=frozenset()),
        OfTypes(types=frozenset({"user", "tool"})),
        OfTypes(types=frozenset({"assistant"})),
    ]
)
filters = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(lambda one: Not(negated=one)),
        st.lists(inner, max_size=3).map(lambda some: AllOf(filters=tuple(some))),
        st.lists(inner, max_size=3).map(lambda some: AnyOf(filters=tuple(some))),
    ),
    max_leaves=6,
)


def chosen(one):
    return {place for place, message in enumerate(MESSAGES) if one.accepts(message)}


@given(filters, filters)
def test_m2_compositions_are_those_of_sets(one, other):
    everything = set(range(len(MESSAGES)))
    assert chosen(Not(negated=one)) == everything - chosen(one)
    assert chosen(AllOf(filters=(one, other))) == chosen(one) & chosen(other)
    assert chosen(AnyOf(filters=(one, other))) == chosen(one) | chosen(other)
    assert chosen(AllOf(filters=())) == everything
    assert chosen(AnyOf(filters=())) == set()
