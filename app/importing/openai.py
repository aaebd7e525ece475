"""Messages in OpenAI format: a line is one message, or a conversation: `{"messages": [...]}`.

The messages that have lines of their own are one session, named after the file; a conversation is a session of its
own, named after file and line, and what else its line holds becomes the metadata. Ids of events are made of file,
line and place in the conversation.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from app.importing.reading import Value, lines
from app.importing.records import BadRecord, Origin, Record, found_event, found_session, id_from


def parse(source: BinaryIO, origin: Origin) -> Iterator[Record]:
    announced = False
    for found in lines(source):
        if isinstance(found, BadRecord):
            yield found
        elif isinstance(found.value, dict) and "messages" in found.value:
            announced = False
            yield from _conversation(found, found.value, origin)
        else:
            if not announced:
                yield from _session(found.place, origin, origin.session_id or id_from(origin.stem), {})
                announced = True
            event_id = id_from(origin.stem, found.place)
            yield found_event(found.place, origin, event_id=event_id, message=found.value)


def _conversation(found: Value, line: dict[str, Any], origin: Origin) -> Iterator[Record]:
    messages = line.pop("messages")
    if not isinstance(messages, list):
        yield BadRecord(place=found.place, reason="messages: A conversation is a list of messages.")
        return
    name = origin.session_id or origin.stem
    yield from _session(found.place, origin, id_from(name, found.place), line)
    for index, message in enumerate(messages):
        yield found_event(
            f"{found.place}.messages[{index}]",
            origin,
            event_id=id_from(origin.stem, found.place, index),
            message=message,
        )


def _session(place: str, origin: Origin, session_id: str, metadata: dict[str, Any]) -> Iterator[Record]:
    user_id = origin.user_id or id_from(origin.stem)
    return found_session(place, origin, session_id=session_id, user_id=user_id, metadata=metadata)
