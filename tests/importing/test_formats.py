"""Which format a file is in, from its beginning."""

import json

import pytest

from app.importing.formats import HEAD_LENGTH, Format, detect

MESSAGE = {"role": "user", "content": '{"kind": "x", "speaker_a": 1}'}
LOCOMO = {"speaker_a": "A", "speaker_b": "B", "session_1": [{"text": "messages role kind"}]}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (json.dumps(MESSAGE), Format.OPENAI),
        (json.dumps({"content": "x", "kind": "y", "role": "user"}), Format.OPENAI),
        (json.dumps({"metadata": {"kind": 1}, "messages": [MESSAGE]}), Format.OPENAI),
        (json.dumps({"kind": "session", "id": "s"}), Format.TURNKEEPER),
        (json.dumps({"kind": "event", "message": MESSAGE}), Format.TURNKEEPER),
        (json.dumps(LOCOMO), Format.LOCOMO),
        (json.dumps(LOCOMO, indent=2), Format.LOCOMO),
        (" \r\n[ ]", Format.CHATGPT),
        (json.dumps([{"mapping": {}}], indent=2), Format.CHATGPT),
        ("broken\n\n" + json.dumps(MESSAGE), Format.OPENAI),
        (json.dumps({"messages": [{"role": "user", "content": "x" * HEAD_LENGTH}]})[:HEAD_LENGTH], Format.OPENAI),
        (json.dumps({"kind": "event", "message": {"content": "x" * HEAD_LENGTH}})[:HEAD_LENGTH], Format.TURNKEEPER),
        ("Dear diary,", None),
        ("{}", None),
        ("7", None),
    ],
)
def test_a_format_is_known_from_its_beginning(head, expected):
    assert detect(head.encode()) is expected
    assert detect(b"\xef\xbb\xbf" + head.encode()) is expected
