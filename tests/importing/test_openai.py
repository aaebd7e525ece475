"""Messages in OpenAI format: a line is a message, or a conversation."""

import json

import pytest

from app.domain.sessions import Lifetime
from app.importing.formats import Format
from tests.importing.parsing import bad, events, messages, parsed, sessions

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello", "unknown": {"kept": 1.50}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{ "a" : 1 }'}}


def openai(*lines, **origin):
    return parsed(Format.OPENAI, "\n".join(json.dumps(line) for line in lines), **origin)


def test_single_messages_are_one_session_named_after_the_file():
    records = openai({"role": "system", "content": "Be brief."}, USER, ASSISTANT)
    (session,) = sessions(records)
    assert (session.id, session.user_id, session.metadata) == ("talk", "talk", {})
    assert session.allow_system_messages
    assert session.lifetime == Lifetime()
    assert [event.id for event in events(records)] == ["talk-1", "talk-2", "talk-3"]
    assert messages(records)[1:] == [USER, ASSISTANT]
    assert bad(records) == {}


def test_a_line_with_messages_is_a_session_of_its_own():
    tool = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    first = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, tool], "tools": []}
    records = openai(first, {"messages": [USER]})
    assert [(session.id, session.metadata) for session in sessions(records)] == [
        ("talk-1", {"tools": []}),
        ("talk-2", {}),
    ]
    assert [event.id for event in events(records)] == ["talk-1-0", "talk-1-1", "talk-1-2", "talk-2-0"]
    assert messages(records)[:3] == first["messages"]


def test_options_name_user_session_and_lifetime():
    options = {"user_id": "alice", "session_id": "support", "lifetime": Lifetime(ttl_seconds=60)}
    records = openai(USER, {"messages": [USER]}, USER, **options)
    assert [session.id for session in sessions(records)] == ["support", "support-2", "support"]
    assert {session.user_id for session in sessions(records)} == {"alice"}
    assert {session.lifetime for session in sessions(records)} == {Lifetime(ttl_seconds=60)}
    assert [event.id for event in events(records)] == ["talk-1", "talk-2-0", "talk-3"]


def test_ids_do_not_change_when_a_file_grows_and_blank_lines_count():
    before = parsed(Format.OPENAI, json.dumps(USER) + "\n\n" + json.dumps(USER))
    after = parsed(Format.OPENAI, json.dumps(USER) + "\n\n" + json.dumps(USER) + "\n" + json.dumps(USER))
    assert events(after)[:2] == events(before)
    assert [event.id for event in events(after)] == ["talk-1", "talk-3", "talk-4"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"role": "robot", "content": "x"}', "message.role"),
        ('{"role": "user", "content": 7}', "message.content"),
        ('{"role": "tool", "content": "x"}', "message.tool_call_id"),
        ('{"content": "x"}', "message.role"),
        ("[1]", "A message is an object"),
        ("7", "A message is an object"),
        ('{"role": "user", "content": "\\ud800"}', "lone surrogate"),
        ('{"role": "user", "content": "x", "deep": ' + "[" * 61 + "]" * 61 + "}", "61 levels deep"),
        ('{"role": "user", "content": "x"', "not valid JSON"),
        ('{"messages": {}}', "messages: A conversation is a list"),
    ],
)
def test_a_bad_line_is_told_and_the_rest_is_read(line, reason):
    records = parsed(Format.OPENAI, f"{json.dumps(USER)}\n{line}\n{json.dumps(ASSISTANT)}")
    assert list(bad(records)) == ["2"]
    assert reason in bad(records)["2"]
    assert [event.id for event in events(records)] == ["talk-1", "talk-3"]


def test_a_bad_message_does_not_take_its_conversation_with_it():
    records = parsed(
        Format.OPENAI, '{"messages":[{"role":"user","content":"a"},{"role":"user","content":"\\udc00"},7]}'
    )
    assert list(bad(records)) == ["1.messages[1]", "1.messages[2]"]
    assert [event.id for event in events(records)] == ["talk-1-0"]


def test_metadata_that_cannot_be_kept_is_told():
    records = openai({"messages": [USER], "source": "a\0b"})
    assert sessions(records)[0].metadata == {}
    assert "NUL" in bad(records)["1"]
    assert len(events(records)) == 1


def test_nul_in_a_message_is_kept():
    assert messages(openai({"role": "user", "content": "a\0b"})) == [{"role": "user", "content": "a\0b"}]


@pytest.mark.parametrize("stem", ["a/b", "x" * 300, "\udcff", "tab\t", ".", "shared:x", "ü ß"])
def test_any_name_of_a_file_makes_legal_ids_and_another_name_makes_others(stem):
    from app.domain.ids import fault_of_id, fault_of_user_id

    (session,) = sessions(openai(USER, stem=stem))
    (event,) = events(openai(USER, stem=stem))
    assert fault_of_user_id(session.user_id) is None
    assert fault_of_id(session.id) is None
    assert fault_of_id(event.id) is None
    assert sessions(openai(USER, stem=f"{stem}2"))[0].id != session.id
