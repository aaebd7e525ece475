"""Turnkeeper's own export, read back: what is whole passes as it is, what is not is told."""

import json

import pytest

from app.domain import json_values
from app.domain.exports import line_of
from app.importing.formats import Format
from tests.importing.parsing import bad, events, parsed, sessions

SESSION = {
    "kind": "session",
    "id": "s",
    "user_id": "alice",
    "created_at": "2026-01-01T00:00:00.000001Z",
    "expires_at": None,
    "ttl_seconds": None,
    "ttl_sliding": False,
    "allow_system_messages": False,
    "metadata": {"a": [1]},
    "event_version": 3,
    "compaction_generation": 1,
    "last_seq": 2048,
    "event_count": 2,
    "active_event_count": 1,
    "active_turn_count": 1,
    "active_token_count": 5,
    "answered_seq": 0,
    "last_event_at": "2026-01-01T00:00:00Z",
}
EVENT = {
    "kind": "event",
    "id": "e",
    "session_id": "s",
    "seq": 1024,
    "timestamp": "2026-01-01T00:00:00Z",
    "message": {"role": "user", "content": "Hi\0"},
    "synthetic": False,
    "archived": True,
    "recall_result": False,
    "tokens": 5,
    "metadata": {},
}
MEMORY = {
    "kind": "memory",
    "store": "alice",
    "path": "a.md",
    "version": 1,
    "content": "x",
    "edited_at": "2026-01-01T00:00:00Z",
    "tool": "rest",
    "session_id": None,
}
SECOND = EVENT | {"id": "e2", "seq": 2048}


def own(*lines):
    return parsed(Format.TURNKEEPER, "\n".join(json.dumps(line) for line in lines))


def test_what_is_read_is_what_was_written():
    records = own(SESSION, EVENT, SECOND)
    assert bad(records) == {}
    read = [*sessions(records), *events(records)]
    assert [json.loads(json_values.encode(line_of(record))) for record in read] == [SESSION, EVENT, SECOND]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"kind": "dream"}, "does not know records of the kind 'dream'"),
        ({**MEMORY, "path": "../x"}, "cannot be used"),
        ({**MEMORY, "store": "a/b"}, "An id"),
        ({**MEMORY, "content": "\0"}, "NUL"),
        ({}, "kind"),
        ([], "object"),
        ({**EVENT, "new": 1}, "unknown field `new`"),
        ({name: value for name, value in EVENT.items() if name != "seq"}, "missing required field `seq`"),
        (EVENT | {"seq": -1}, "$.seq"),
        (EVENT | {"seq": "7"}, "$.seq"),
        (EVENT | {"tokens": 2**31}, "$.tokens"),
        (EVENT | {"timestamp": "2026-01-01T00:00:00"}, "$.timestamp"),
        (EVENT | {"timestamp": "0001-01-01T00:00:00+09:00"}, "years 1 to 9999"),
        (EVENT | {"timestamp": "9999-12-31T23:59:59.999999Z"}, "years 1 to 9999"),
        (EVENT | {"id": "a/b"}, "An id"),
        (EVENT | {"message": {"role": "robot"}}, "message.role"),
        (EVENT | {"metadata": {"a": "\0"}}, "NUL"),
        (EVENT | {"message": {"role": "user", "content": "\ud800"}}, "lone surrogate"),
        (EVENT | {"session_id": "other"}, "'other', does not stand in front of it"),
        (EVENT | {"seq": 4096}, "greater than last_seq"),
        (SESSION | {"user_id": "shared:x"}, "shared:"),
        (SESSION | {"metadata": None}, "$.metadata"),
    ],
)
def test_a_bad_line_is_told_with_its_number(line, reason):
    records = own(SESSION, EVENT, line, SECOND)
    assert reason in bad(records)["3"]


def test_events_without_the_line_of_their_session_are_told():
    records = own(EVENT, SESSION | {"id": ""}, EVENT)
    assert list(bad(records)) == ["1", "2", "3"]
    assert sessions(records) == events(records) == []


@pytest.mark.parametrize(
    "lines", [[SESSION], [SESSION, EVENT], [SESSION, EVENT, SESSION | {"id": "t", "event_count": 0}]]
)
def test_an_export_that_was_cut_off_between_two_lines_does_not_pass_for_whole(lines):
    assert "cut off" in bad(own(*lines))["1"]


def test_an_export_that_was_cut_off_inside_a_line_is_told():
    whole = "\n".join(json.dumps(line) for line in (SESSION, EVENT, SECOND))
    assert "not valid JSON" in bad(parsed(Format.TURNKEEPER, whole[:-9]))["3"]


def test_nothing_is_nothing():
    assert own() == []
