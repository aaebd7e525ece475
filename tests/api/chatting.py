"""A chat client for tests: a session with a scripted upstream behind it."""

import json
from contextlib import asynccontextmanager

from tests.conftest import serving
from tests.prompt_rules import require_valid
from tests.upstream import Answer, scripted_upstream

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


class Chats:
    """What is said to one service; every request that its upstream gets has to be valid."""

    def __init__(self, http, upstream):
        self.http = http
        self.upstream = upstream

    @property
    def compactions(self):
        """Those in the background."""
        return self.http._transport.app.state.services.chat.compactions

    async def post(self, *messages, session="s", path="/v1/chat/completions", headers=None, **fields):
        body = {"session_id": session, "messages": [said(message) for message in messages], **fields}
        return await self.http.post(path, json=body, headers=headers)

    async def say(self, *messages, **options):
        """A chat that has to succeed; returns the message that came back."""
        response = await self.post(*messages, **options)
        assert response.status_code == 200, response.text
        if options.get("stream"):
            return streamed(response.text)
        return response.json()["choices"][0]["message"]

    async def store(self, *messages, session="s", **fields):
        """Direct appends."""
        events = [{"message": said(message), **fields} for message in messages]
        response = await self.http.post(f"/v1/sessions/{session}/events", json={"user_id": "alice", "events": events})
        assert response.status_code == 201, response.text

    async def events(self, session="s", **query):
        response = await self.http.get(f"/v1/sessions/{session}/events", params=query)
        assert response.status_code == 200, response.text
        return response.json()["events"]

    async def log(self, session="s", **query):
        return [short(event["message"]) for event in await self.events(session, **query)]

    @property
    def sent(self):
        """What the upstream was sent last."""
        return [short(message) for message in self.upstream.requests[-1]["messages"]]


@asynccontextmanager
async def chatting(url, upstream_of=None, **settings):
    """A service with an upstream of its own, or, as another replica, with that of the first."""
    if upstream_of is not None:
        options = {"upstream_url": upstream_of.upstream.url, "upstream_model": "small"}
        async with serving(url, **options, **settings) as http:
            yield Chats(http, upstream_of.upstream)
        return
    with scripted_upstream() as upstream:
        upstream.reset(Answer("answer"))
        async with serving(url, upstream_url=upstream.url, upstream_model="small", **settings) as http:
            yield Chats(http, upstream)
        for request in upstream.requests:
            require_valid(request)


def said(message):
    """`"q1"` is a question, `"a: answer"`, `"s: instruction"` the others'; anything else is a message already."""
    if not isinstance(message, str):
        return message
    role, _, text = message.partition(": ")
    names = {"a": "assistant", "s": "system"}
    return {"role": names[role], "content": text} if role in names else {"role": "user", "content": message}


def call(*ids, text=None, name="weather"):
    calls = [{"id": one, "type": "function", "function": {"name": name, "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(call_id, text=None):
    return {"role": "tool", "tool_call_id": call_id, "content": text or f"result of {call_id}"}


def short(message):
    """A message as tests write it."""
    if message.get("tool_calls"):
        return "calls " + " ".join(one["id"] for one in message["tool_calls"])
    prefix = {"user": "", "assistant": "a: ", "system": "s: ", "tool": "t: "}[message["role"]]
    return prefix + str(message["content"])


def streamed(text):
    """The message that a stream's deltas come to."""
    message = {"role": "assistant", "content": ""}
    assert text.rstrip().endswith("data: [DONE]"), text
    for chunk in chunks(text):
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for fragment in choice["delta"].get("tool_calls") or []:
                calls = message.setdefault("tool_calls", [])
                if fragment["index"] == len(calls):
                    calls.append(
                        {"id": fragment["id"], "function": {"name": fragment["function"]["name"], "arguments": ""}}
                    )
                calls[fragment["index"]]["function"]["arguments"] += fragment["function"]["arguments"]
    return message


def chunks(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
