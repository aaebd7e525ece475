"""Conversations of the LoCoMo benchmark: what the tests write, and the real ones."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.importing.formats import Format
from tests.importing.parsing import bad, events, parsed, sessions

DATA = Path(__file__).parents[3] / "shared" / "data" / "locomo"

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the LoCoMo data is for research use and not at {DATA}")

SAID = [
    {"speaker": "Mel", "dia_id": "D1:1", "text": "Hey!"},
    {
        "speaker": "Caro",
        "dia_id": "D1:2",
        "text": "Look:",
        "img_url": ["u"],
        "blip_caption": "a dog",
        "query": "dogs",
    },
]


def locomo(**changes):
    conversation = {
        "speaker_a": "Caro",
        "speaker_b": "Mel",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": SAID,
        "session_1_summary": "They met.",
    }
    return parsed(Format.LOCOMO, json.dumps(conversation | changes, indent=1), stem="26")


def test_speaker_a_is_the_user_whoever_begins():
    records = locomo()
    (session,) = sessions(records)
    assert (session.id, session.user_id) == ("locomo-26-session_1", "locomo-26")
    mel, caro = events(records)
    assert mel.message == {"role": "assistant", "name": "Mel", "content": "Hey!"}
    assert caro.message == {"role": "user", "name": "Caro", "content": "Look:"}
    assert caro.metadata == {"dia_id": "D1:2", "img_url": ["u"], "blip_caption": "a dog", "query": "dogs"}
    assert [event.id for event in events(records)] == ["D1:1", "D1:2"]


def test_messages_are_a_minute_apart_from_the_time_of_their_session():
    assert [event.timestamp for event in events(locomo())] == [
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 5, 8, 13, 57, tzinfo=UTC),
    ]


def test_what_is_wrong_is_told_and_the_rest_is_read():
    records = locomo(
        session_2=[7, {"speaker": "Mel"}, {"speaker": "Ann", "dia_id": "x"}, SAID[0] | {"text": None}, *SAID],
        session_2_date_time="yesterday",
        session_3={},
    )
    assert set(bad(records)) == {
        "session_2_date_time",
        "session_2[0]",
        "session_2[1]",
        "session_2[2]",
        "session_2[3]",
        "session_3",
    }
    assert len(events(records)) == 4
    assert events(records)[-1].timestamp is None


@pytest.mark.parametrize("data", ["[]", "{", "7", ""])
def test_what_is_no_conversation_is_told(data):
    assert len(bad(parsed(Format.LOCOMO, data))) == 1


@needs_data
def test_the_real_conversations_are_read_whole():
    records = [
        record
        for file in sorted(DATA.glob("*.json"))
        for record in parsed(Format.LOCOMO, file.read_bytes(), stem=file.stem)
    ]
    assert bad(records) == {}
    assert len(sessions(records)) == 78
    assert len(events(records)) == 1_729
    assert Counter(session.user_id for session in sessions(records)) == {
        "locomo-26": 19,
        "locomo-42": 29,
        "locomo-48": 30,
    }
