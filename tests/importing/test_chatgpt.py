"""ChatGPT's conversations.json."""

import json
from datetime import UTC, datetime

import pytest

from app.importing.formats import Format
from tests.importing.parsing import bad, events, messages, parsed, sessions


def node(name, parent, role=None, text=None, **message):
    """A node of the tree; without a role it has no message."""
    content = {"content_type": "text", "parts": [text]}
    said = {
        "author": {"role": role, "name": None},
        "content": content,
        "create_time": 1700000000.25,
        "recipient": "all",
    }
    return name, {"id": name, "parent": parent, "children": [], "message": said | message if role else None}


def conversation(*nodes, current=None, **fields):
    mapping = dict(nodes)
    fallback = list(mapping)[-1] if mapping else None
    return {
        "conversation_id": "c-1",
        "title": "Bread",
        "mapping": mapping,
        "current_node": current or fallback,
    } | fields


def chatgpt(*conversations, **origin):
    return parsed(Format.CHATGPT, json.dumps(conversations), **origin)


ROOT = node("root", None)


def test_the_current_branch_is_followed_and_nothing_else():
    records = chatgpt(
        conversation(
            ROOT,
            node("u1", "root", "user", "How?"),
            node("a1", "u1", "assistant", "Old answer"),
            node("a2", "u1", "assistant", "New answer"),
            node("u2", "a2", "user", "Thanks"),
            node("u3", "a1", "user", "Abandoned"),
            current="u2",
        )
    )
    (session,) = sessions(records)
    assert (session.id, session.user_id, session.metadata) == ("c-1", "talk", {"title": "Bread"})
    assert [event.id for event in events(records)] == ["u1", "a2", "u2"]
    assert messages(records)[1] == {"role": "assistant", "content": "New answer"}
    assert events(records)[0].timestamp == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert bad(records) == {}


def test_what_was_not_said_is_left_out():
    hidden = {"metadata": {"is_visually_hidden_from_conversation": True}}
    thoughts = {"content": {"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}}
    context = {"content": {"content_type": "user_editable_context", "user_profile": "Baker"}}
    records = chatgpt(
        conversation(
            ROOT,
            node("s", "root", "system", ""),
            node("h", "s", "system", "Be nice.", **hidden),
            node("p", "h", "user", **context),
            node("u", "p", "user", "Hi"),
            node("t", "u", "assistant", **thoughts),
            node("b", "t", "assistant", " \n"),
            node("s2", "b", "system", "You may."),
        )
    )
    assert [(event.id, event.type) for event in events(records)] == [("u", "user"), ("s2", "system")]


def test_calls_and_results_of_tools_become_what_the_assistant_said():
    code = {"content": {"content_type": "code", "language": "python", "text": "1 + 1"}, "recipient": "python"}
    output = {
        "author": {"role": "tool", "name": "python"},
        "content": {"content_type": "execution_output", "text": "2"},
    }
    records = chatgpt(
        conversation(
            node("u", None, "user", "?"), node("c", "u", "assistant", **code), node("o", "c", "tool", **output)
        )
    )
    _, call, result = events(records)
    assert call.message == {"role": "assistant", "content": "1 + 1"}
    assert call.metadata == {"recipient": "python", "content": code["content"]}
    assert result.message == {"role": "assistant", "name": "python", "content": "2"}
    assert result.metadata == {"author_role": "tool", "content": output["content"]}


def test_parts_that_are_no_text_are_named_and_kept_in_the_metadata():
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x", "size_bytes": 7}
    audio = {"content_type": "audio_transcription", "text": "spoken"}
    content = {"content_type": "multimodal_text", "parts": [image, "What is this?", audio, ""]}
    (event,) = events(chatgpt(conversation(node("u", None, "user", content=content))))
    assert event.message == {"role": "user", "content": "[image_asset_pointer]\nWhat is this?\nspoken"}
    assert event.metadata == {"content": content}


def test_the_model_is_kept_and_a_missing_time_is_that_of_the_conversation():
    said = {"create_time": None, "metadata": {"model_slug": "gpt-x"}}
    (event,) = events(chatgpt(conversation(node("a", None, "assistant", "Hi", **said), create_time=1)))
    assert event.metadata == {"model": "gpt-x"}
    assert event.timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_options_name_user_and_session():
    records = chatgpt(conversation(node("u", None, "user", "Hi")), user_id="alice", session_id="old")
    assert [(session.id, session.user_id) for session in sessions(records)] == [("old-c-1", "alice")]


def test_a_conversation_without_an_id_is_named_after_its_place():
    nameless = conversation(node("u", None, "user", "Hi"), conversation_id=None)
    assert [session.id for session in sessions(chatgpt(nameless, nameless))] == ["talk-0", "talk-1"]


@pytest.mark.parametrize(
    "broken",
    [7, {}, {"mapping": {}}, {"mapping": [], "current_node": "u"}, conversation(ROOT, current="nowhere"), None],
)
def test_a_broken_conversation_is_told_and_the_rest_is_read(broken):
    records = chatgpt(broken, conversation(node("u", None, "user", "Hi")))
    assert list(bad(records)) == ["[0]"]
    assert [event.id for event in events(records)] == ["u"]


def test_bad_messages_are_told_with_their_node():
    records = chatgpt(
        conversation(
            node("u", "a", "user", "Hi"),  # the tree runs in a circle
            node("x", "u", "critic", "Bad role"),
            node("s", "x", "user", "\ud83d lone"),
            ("odd", {"parent": "s", "message": {"content": {"parts": [None, 7, {}]}, "author": []}}),
            node("a", "odd", "assistant", "Hello", create_time="never"),
        )
    )
    assert list(bad(records)) == ["[0].mapping['x']", "[0].mapping['s']"]
    assert [event.id for event in events(records)] == ["u", "a"]


def test_a_title_that_cannot_be_kept_costs_no_message():
    records = chatgpt(conversation(node("u", None, "user", "Hi"), title="cut \ud83d"))
    assert list(bad(records)) == ["[0]"]
    assert len(events(records)) == 1


def test_a_file_that_is_cut_off_is_read_up_to_there():
    whole = json.dumps([conversation(node("u", None, "user", "Hi")), conversation(ROOT, conversation_id="c-2")])
    records = parsed(Format.CHATGPT, whole[:-30])
    assert [event.id for event in events(records)] == ["u"]
    assert "cut off" in bad(records)["[1]"]
