"""What a client does with the log of a session: append to it, read it, search it, compact it, delete it."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from tests.prompt_rules import faults_of_prompt
from tests.service.load.round_robin import RoundRobin
from tests.service.load.sessions import Session
from tests.service.scripted_model import Line, now, words_of

_NDJSON = {"Accept": "application/x-ndjson"}


@dataclass
class Here:
    """A client in a session, and where it says what is wrong."""

    client: RoundRobin
    session: Session
    chance: Random
    faults: list[str]

    def path(self, rest: str = "") -> str:
        return f"/v1/sessions/{self.session.id}{rest}"

    def complain(self, what: str, found: Any) -> None:
        if isinstance(found, httpx.Response):
            found = f"was answered {found.status_code}: {found.text[:500]}"
        self.faults.append(f"{self.session.id}: {what} {found}")


# Writing


async def append(here: Here) -> None:
    lines = _say(here)
    events = [{"id": line.word, "message": line.message} for line in lines]
    body = {"user_id": here.session.user, "events": events}
    _acknowledge(here, lines, await here.client.insist("POST", here.path("/events"), json=body))


async def append_unnamed(here: Here) -> None:
    """Without ids it is not sent again: where the answer is lost, it is there once or not at all."""
    lines = _say(here)
    body = {"user_id": here.session.user, "events": [{"message": line.message} for line in lines]}
    answer = await here.client.once("POST", here.path("/events"), json=body)
    if answer is not None and answer.status_code != 503:
        _acknowledge(here, lines, answer)


def _say(here: Here) -> list[Line]:
    roles = ["user", "assistant"] * here.chance.randint(1, 2)
    return [here.session.says(role, "was appended") for role in roles]


def _acknowledge(here: Here, lines: list[Line], answer: httpx.Response) -> None:
    if answer.status_code not in {200, 201}:
        here.complain("An append", answer)
        return
    here.session.acknowledge(*(line.word for line in lines))
    here.session.version = max(here.session.version, answer.json()["event_version"])


async def compact(here: Here) -> None:
    if not here.session.compacts or not here.session.version:
        return
    strategy = {"turn_window": {"max_turns": here.chance.randint(1, 4)}}
    answer = await here.client.insist("POST", here.path("/compact"), json={"strategy": strategy})
    if answer.status_code != 200:
        here.complain("A compaction", answer)


async def delete(here: Here) -> None:
    """Acknowledged, it is gone at every replica; a retry finds nothing to delete."""
    if here.session.is_shared or not here.session.version:
        return
    answer = await here.client.insist("DELETE", here.path())
    if answer.status_code not in {204, 404}:
        here.complain("A deletion", answer)
    here.session.is_deleted = True
    for path in ("", "/events", "/context"):
        if (found := await here.client.insist("GET", here.path(path))).status_code != 404:
            here.complain("Deleted, it", found)


# Reading


async def read_context(here: Here) -> None:
    began = now()
    found = await _read(here, "/context")
    if found is not None and found["messages"]:
        faults = [*faults_of_prompt(found), *here.session.faults_of_words(found["messages"], began)]
        for fault in faults:
            here.complain("Its context:", fault)


async def read_window(here: Here) -> None:
    found = await _read(here, f"/events?last_n={here.chance.randint(1, 8)}")
    if found is not None and found["events"]:
        if found["events"][0]["type"] != "user":
            here.complain("A window begins with", found["events"][0])
        _must_be_known(here, found["events"])


async def read_pages(here: Here) -> None:
    """Page after page, each from another replica: what was acknowledged is in them once."""
    began, events, more, page = now(), list[dict[str, Any]](), True, 0
    while more:
        if (found := await _read(here, f"/events?page={page}&page_size=9")) is None:
            return
        events += found["events"]
        more, page = found["has_more"], page + 1
    _must_be_known(here, events)
    _must_be_whole(here, events, began)


async def stream_log(here: Here) -> None:
    began = now()
    answer = await here.client.insist("GET", here.path("/events"), headers=_NDJSON)
    if answer.status_code != 404 or here.session.version:
        events = [json.loads(line) for line in answer.text.splitlines()]
        _must_be_known(here, events)
        _must_be_whole(here, events, began)


async def _read(here: Here, path: str) -> Any:
    """None: there is no such session yet. What was acknowledged before is never behind."""
    version = here.session.version
    answer = await here.client.insist("GET", here.path(path))
    if answer.status_code == 404 and not version:
        return None
    if answer.status_code != 200:
        here.complain("A read", answer)
        return None
    found = answer.json()
    if found["event_version"] < version:
        here.complain("Version", f"{found['event_version']} came after {version}.")
    return found


def _must_be_known(here: Here, events: list[dict[str, Any]]) -> None:
    if len({event["id"] for event in events}) < len(events):
        here.complain("A read has an event twice:", [event["id"] for event in events])
    for event in events:
        strangers = [word for word in words_of(event["message"]) if int(word[1:5]) != here.session.number]
        if strangers and event["session_id"] == here.session.id:
            here.complain("Another session's", event)


def _must_be_whole(here: Here, events: list[dict[str, Any]], began: float) -> None:
    held = {word for event in events for word in words_of(event["message"])}
    if lost := [line.word for line in here.session.settled(began) if line.word not in held]:
        here.complain("A read is without", lost)


# Searching


async def search(here: Here) -> None:
    await _search(here, here.path("/search"))


async def search_user(here: Here) -> None:
    await _search(here, f"/v1/users/{here.session.user}/search")


async def _search(here: Here, path: str) -> None:
    """What was acknowledged is found, once, whichever replica is asked."""
    said = [line for line in here.session.settled(now()) if line.role == "user"]
    if not said:
        return
    word = here.chance.choice(said).word
    answer = await here.client.insist("POST", path, json={"query": word, "types": ["user"]})
    if answer.status_code != 200:
        here.complain("A search", answer)
    elif [result["session_id"] for result in answer.json()["results"]] != [here.session.id]:
        here.complain(f"A search for {word}:", answer.json()["results"])
