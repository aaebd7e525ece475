"""`turnkeeper demo`: the story in a minute, told by a client that uses the service over HTTP like any other."""

import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import structlog
import uvicorn
from rich.console import Console

from app.cli.database import database_url, migrate
from app.cli.demo_llm import scripted_llm
from app.cli.demo_story import CHAT, CORRECTION, FACT, LATER, NEEDS_THE_FACT, SESSIONS, USER
from app.config import Settings
from app.main import create_app

_PATIENCE_SECONDS = 30


def demo() -> None:
    """Show what the service does: windows, recall, chat, compaction. On throw-away data, without a network."""
    console = Console(highlight=False, soft_wrap=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # The story is the output.
    console.print("Starting PostgreSQL and the service on throw-away data …", style="dim")
    with _service() as url, httpx.Client(base_url=url, timeout=_PATIENCE_SECONDS) as http:
        console.print(f"Turnkeeper listens on {url}.", style="dim")
        _Story(console, http).tell()
    console.print()
    console.print("Now with data of your own: ./run serve, then the README's first conversation.")


class _Story:
    def __init__(self, console: Console, http: httpx.Client) -> None:
        self._console = console
        self._http = http

    def tell(self) -> None:
        self._remember()
        self._windows()
        self._prompt()
        self._recall_in_one_session()
        self._recall_across_sessions()
        self._wrong_calls()
        self._chat()
        self._compaction()
        self._recall_of_what_was_compacted()
        self._long_term_memory()

    def _remember(self) -> None:
        self._chapter("Remember", "Three conversations over two months, kept word for word, tool calls included.")
        for session_id, began, messages in SESSIONS:
            events = [
                {"id": f"{session_id}-{place}", "timestamp": _later(began, place), "message": message}
                for place, message in enumerate(messages)
            ]
            body = {"user_id": USER, "events": events}
            answer = self._call("POST", f"/v1/sessions/{session_id}/events", body, shown=f"{len(events)} events")
            self._say(f"appended {answer['appended']}, the log is at version {answer['event_version']}")
        again = self._call("POST", f"/v1/sessions/{session_id}/events", body, shown="the same once more")
        self._say(f"appended {again['appended']}, replayed {again['replayed']}: a retry writes nothing twice")

    def _windows(self) -> None:
        self._chapter(
            "Windows keep turns whole",
            "The newest four events of April begin with a tool result whose call is cut off; no provider takes such "
            "a prompt. The window begins where that turn does.",
        )
        read = self._call("GET", "/v1/sessions/mara-april/events?last_n=4")
        for event in read["events"]:
            self._say(_line(event["message"]))

    def _prompt(self) -> None:
        self._chapter("A prompt", "The active window as messages that any provider accepts, within a budget.")
        context = self._call("GET", "/v1/sessions/mara-march/context?max_tokens=60")
        for message in context["messages"]:
            self._say(_line(message))
        self._say(f"{context['tokens']} of {context['total_tokens']} tokens: whole turns only")

    def _recall_in_one_session(self) -> None:
        self._chapter("Recall inside a session", "What a model calls when it cannot see what it needs.")
        arguments = {"innerThought": "Which spelling did she want?", "query": "krümel"}
        self._tool("/v1/sessions/mara-april/tools/conversation_search", arguments)

    def _recall_across_sessions(self) -> None:
        self._chapter(
            "Recall across sessions",
            "A background agent looks for decisions and corrections in everything that Mara ever said.",
        )
        arguments = {"innerThought": "What was decided?", "query": "we decided, let's go with"}
        self._tool(f"/v1/users/{USER}/tools/cross_session_search", arguments)

    def _wrong_calls(self) -> None:
        self._chapter("Wrong calls", "A model gets a sentence that it can act on, a program a problem document.")
        arguments = {"innerThought": "Only the new ones.", "query": "pre-orders", "since": "2026-05-01"}
        self._tool(f"/v1/users/{USER}/tools/cross_session_search", arguments)
        self._call("GET", "/v1/sessions/mara-may/events?last_n=0")
        changed = {"id": "mara-may-0", "message": {"role": "user", "content": "I never said that."}}
        self._call("POST", "/v1/sessions/mara-may/events", {"events": [changed]}, shown="a stored id, other words")

    def _chat(self) -> None:
        self._chapter(
            "Chat",
            "Any OpenAI client that names a session has a memory: the service loads the history, asks the LLM, and "
            "stores both sides. The LLM of this demo is scripted; it answers from a list.",
        )
        for text in CHAT:
            self._ask(text)

    def _compaction(self) -> None:
        self._chapter(
            "Compaction",
            "Old turns leave the prompt, and a summary takes their place. The log keeps every word. A chat does this "
            "by itself when its trigger fires; here it is asked for.",
        )
        strategy = {"summarize": {"max_events": 2, "overlap": 0}}
        done = self._call(
            "POST", "/v1/sessions/mara-june/compact", {"strategy": strategy}, shown=json.dumps(strategy)
        )
        self._say(f"archived {done['archived']} events; the prompt now is:")
        for message in self._call("GET", "/v1/sessions/mara-june/context")["messages"]:
            self._say(_line(message))

    def _recall_of_what_was_compacted(self) -> None:
        self._chapter(
            "Recall of what was compacted away",
            "The summary left the receipt out. With memory.recall the model gets a search over the whole log; the "
            "service runs it, and the client sees the answer alone.",
        )
        self._ask(LATER, memory={"recall": True})

    def _long_term_memory(self) -> None:
        self._chapter(
            "Long-term memory",
            "With memory.long_term the model keeps files of its own about a user, across sessions. Here it saves a "
            "fact, finds it in another session, and corrects it; every version is kept.",
        )
        options: dict[str, Any] = {"memory": {"long_term": True}}
        self._ask(FACT, **options)
        self._file("diet.md")
        self._ask(NEEDS_THE_FACT, session="mara-july", **options)
        self._ask(CORRECTION, session="mara-july", **options)
        self._file("diet.md")
        versions = self._call("GET", f"/v1/memories/{USER}/file/versions?path=diet.md")["items"]
        for one in versions:
            self._say(f"version {one['version']}, by {one['tool']} in {one['session_id']}")
        body = {"version": versions[-1]["version"]}
        self._call("POST", f"/v1/memories/{USER}/file/restore?path=diet.md", body, shown="the first one again")
        self._file("diet.md")

    def _file(self, path: str) -> None:
        url = f"/v1/memories/{USER}/file?path={path}"
        self._console.print(f"  [bold]GET[/bold] {url}")
        for line in self._http.get(url).text.splitlines():
            self._say(line)

    def _ask(self, text: str, *, session: str = "mara-june", **options: Any) -> None:
        body = {"session_id": session, "user_id": USER, "messages": [{"role": "user", "content": text}], **options}
        answer = self._call(
            "POST", "/v1/chat", body, shown=json.dumps({"memory": options["memory"]}) if options else ""
        )
        self._say(f"user: {text}")
        self._say(_line(answer["choices"][0]["message"]))

    def _tool(self, path: str, arguments: dict[str, Any]) -> None:
        answer = self._call("POST", path, arguments, shown=json.dumps(arguments, ensure_ascii=False))
        if answer["is_error"]:
            self._say(answer["content"])
            return
        for result in json.loads(answer["content"]):
            session = f"{result['sessionId']}  " if "sessionId" in result else ""
            self._say(f"{session}{result['timestamp'][:10]}  {result['type']}: {result['text']}")

    def _call(self, method: str, path: str, body: Any = None, *, shown: str = "") -> Any:
        """One request, shown; an error is part of the story and shown too."""
        self._console.print(f"  [bold]{method}[/bold] {path}", end="")
        self._console.print(f"  [dim]{shown}[/dim]" if shown else "")
        response = self._http.request(method, path, json=body)
        if response.is_error:
            self._say(f"{response.status_code}: {response.json()['detail']}")
        return response.json()

    def _chapter(self, title: str, text: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{title}[/bold]", align="left", style="cyan")
        self._console.print(text)
        self._console.print()

    def _say(self, text: str) -> None:
        self._console.print("    " + text, markup=False, style="green")


@contextmanager
def _service() -> Iterator[str]:
    """The whole service on an embedded PostgreSQL in a folder that is removed afterwards; yields its URL."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-demo-"))
    # Whatever is set for the real service is not meant for throw-away data.
    own = {"data_dir": folder, "upstream_model": "scripted"}
    try:
        with scripted_llm() as llm, database_url(Settings.model_construct(**{**_defaults(), **own})) as url:
            settings = Settings.model_construct(**{**_defaults(), **own, "upstream_url": llm})
            asyncio.run(migrate(url, settings))
            app = create_app(settings, database_url=url)
            server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                yield _address(server)
            finally:
                server.should_exit = True
                thread.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _defaults() -> dict[str, Any]:
    return {name: field.get_default() for name, field in Settings.model_fields.items()}


def _address(server: uvicorn.Server) -> str:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not server.started:
        if time.monotonic() > deadline:
            raise TimeoutError("The service did not start.")
        time.sleep(0.02)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://{host}:{port}"


def _later(began: str, place: int) -> str:
    return (datetime.fromisoformat(began) + timedelta(seconds=30 * place)).isoformat()


def _line(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or []]
    called = " ".join(f"→ {call['name']}({call['arguments']})" for call in calls)
    return f"{message['role']}: {' '.join(filter(None, [message['content'], called]))}"
