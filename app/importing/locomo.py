"""A conversation of the LoCoMo benchmark (Maharana et al., ACL 2024): two people, many sessions over months.

Each `session_N` becomes a session. speaker_a is the user, speaker_b the assistant; the sessions have a time (read as
UTC), the messages none: they are a minute apart. What a message holds besides its text goes into the metadata.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

from app.importing.reading import whole
from app.importing.records import BadRecord, Origin, Record, found_event, found_session, id_from

_TIME_FORMAT = "%I:%M %p on %d %B, %Y"
_ROLES = {"speaker_a": "user", "speaker_b": "assistant"}


def parse(source: BinaryIO, origin: Origin) -> Iterator[Record]:
    found = whole(source)
    if isinstance(found, BadRecord):
        yield found
    elif not isinstance(conversation := found.value, dict):
        yield BadRecord(place="", reason="A LoCoMo conversation is an object.")
    else:
        for key, said in conversation.items():
            if re.fullmatch(r"session_\d+", key):
                yield from _session(conversation, key, said, origin)


def _session(conversation: dict[str, Any], key: str, said: Any, origin: Origin) -> Iterator[Record]:
    if not isinstance(said, list):
        yield BadRecord(place=key, reason="A session is a list of messages.")
        return
    date_time = conversation.get(f"{key}_date_time")
    if (began := _instant(date_time)) is None:
        reason = f"{date_time!r} is not a time such as '1:56 pm on 8 May, 2023': the messages get the time of import."
        yield BadRecord(place=f"{key}_date_time", reason=reason)
    yield from found_session(
        key,
        origin,
        session_id=id_from(origin.session_id or f"locomo-{origin.stem}", key),
        user_id=origin.user_id or id_from("locomo", origin.stem),
        metadata={"date_time": date_time, **{name: conversation.get(name) for name in _ROLES}},
    )
    roles = {conversation.get(name): role for name, role in _ROLES.items()}
    for index, item in enumerate(said):
        timestamp = began and began + timedelta(minutes=index)
        yield _event(f"{key}[{index}]", item, roles, timestamp, origin)


def _event(place: str, item: Any, roles: dict[Any, str], timestamp: datetime | None, origin: Origin) -> Record:
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in ("dia_id", "text")):
        return BadRecord(place=place, reason="A message is an object with speaker, dia_id and text.")
    speaker = item.get("speaker")
    if not isinstance(speaker, str) or speaker not in roles:
        return BadRecord(place=place, reason=f"The speaker {speaker!r} is neither speaker_a nor speaker_b.")
    return found_event(
        place,
        origin,
        event_id=id_from(item["dia_id"]),
        message={"role": roles[speaker], "name": speaker, "content": item["text"]},
        timestamp=timestamp,
        metadata={name: value for name, value in item.items() if name not in {"speaker", "text"}},
    )


def _instant(date_time: Any) -> datetime | None:
    try:
        return datetime.strptime(date_time, _TIME_FORMAT).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        return None
