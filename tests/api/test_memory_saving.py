"""A model that does what the memory prompt says and knows nothing else saves in two steps, and finds it."""

import json
import re

import pytest

from tests.api.chatting import chatting
from tests.upstream import Answer

LONG_TERM = {"long_term": True}
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

FACTS = {"I eat no meat.": "user/diet.md", "Answer briefly, please.": "feedback/brevity.md"}


class Follower:
    """Reads the index that its prompt names, saves a file and then its line; asked anything else, it looks up."""

    def __init__(self):
        self.calls = 0

    def __call__(self, request):
        system, question, results = _read(request)
        index = re.search(r"\S+/MEMORY\.md", system)[0]
        if not results:
            return self._call("MemoryView", path=index)
        if question in FACTS:
            return self._save(index, question, results)
        links = re.findall(r"\]\(([^)]+)\)", results[0])
        if len(results) <= len(links):
            return self._call("MemoryView", path=links[len(results) - 1])
        return Answer("You told me: " + " ".join(result.splitlines()[-1].split("\t")[-1] for result in results[1:]))

    def _save(self, index, fact, results):
        path, name = FACTS[fact], FACTS[fact].split("/")[-1].removesuffix(".md")
        if len(results) == 1:
            head = f"---\nname: {name}\ndescription: {name}\ntype: {path.split('/')[0]}\n---\n\n"
            return self._call("MemoryCreate", path=path, fileText=f"{head}{fact}\n")
        if len(results) > 2:
            return Answer("I will remember that.")
        line = f"- [{name}]({path}): {name}\n"
        if results[0].startswith("Error: "):
            return self._call("MemoryCreate", path=index, fileText=line)
        last = int(re.search(r"^Lines \d+-\d+ of (\d+)$", results[0], re.MULTILINE)[1])
        return self._call("MemoryInsert", path=index, insertLine=last, insertText=line)

    def _call(self, tool, **arguments):
        self.calls += 1
        return Answer(calls=[(f"call-{self.calls}", tool, json.dumps(arguments))])


def _read(request):
    """The system message, the last question, and the results since then."""
    messages = request["messages"]
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    results = [message["content"] for message in messages[asked:] if message["role"] == "tool"]
    return messages[0]["content"], messages[asked]["content"], results


@BOTH
async def test_what_is_saved_as_the_prompt_says_is_found_in_the_next_session(database_url, stream):
    async with chatting(database_url) as chats:
        chats.upstream.behaviour = Follower()
        options = {"user_id": "alice", "memory": LONG_TERM, "stream": stream, "path": "/v1/chat"}
        for fact in FACTS:
            reply = await chats.say(fact, session="first", **options)
            assert reply["content"] == "I will remember that."
        listed = (await chats.http.get("/v1/memories/alice/files")).json()["items"]
        assert [file["path"] for file in listed] == ["MEMORY.md", *sorted(FACTS.values())]
        index = await chats.http.get("/v1/memories/alice/file", params={"path": "MEMORY.md"})
        assert index.text == "- [diet](user/diet.md): diet\n- [brevity](feedback/brevity.md): brevity\n"
        reply = await chats.say("What do you know about me?", session="second", **options)
        assert reply["content"] == "You told me: I eat no meat. Answer briefly, please."
        history = await chats.http.get("/v1/memories/alice/file/versions", params={"path": "MEMORY.md"})
        made = [(one["tool"], one["session_id"]) for one in history.json()["items"]]
        assert made == [("MemoryInsert", "first"), ("MemoryCreate", "first")]
