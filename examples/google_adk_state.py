"""State that sessions of Google ADK share: by key in the metadata of sessions of its own. Used by google_adk.py."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from google.adk.sessions import State
from pydantic_core import to_jsonable_python
from session_log import Turnkeeper

_PREFIXES = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


def key_of(*place: str) -> str:
    """The id in Turnkeeper: of an app's state, of a user's in it, of a session."""
    return ":".join(quote(part, safe="") for part in place)


def own(state: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to one session alone."""
    return {name: value for name, value in state.items() if not name.startswith(_PREFIXES)}


class SharedState:
    def __init__(self, service: Turnkeeper) -> None:
        self._service = service

    def seen_from(self, app_name: str, user_id: str) -> dict[str, Any]:
        """All that a session of the user sees, with prefixes."""
        of_app = {State.APP_PREFIX + name: value for name, value in self.at(app_name).items()}
        return of_app | {State.USER_PREFIX + name: value for name, value in self.at(app_name, user_id).items()}

    def at(self, *place: str) -> dict[str, Any]:
        found = self._service.find("GET", "sessions", key_of(*place))
        return {name: json.loads(value) for name, value in found.json()["metadata"].items()} if found else {}

    def keep(self, app_name: str, user_id: str, delta: Mapping[str, Any]) -> None:
        self._keep(delta, State.APP_PREFIX, f"app:{app_name}", app_name)
        self._keep(delta, State.USER_PREFIX, user_id, app_name, user_id)

    def _keep(self, delta: Mapping[str, Any], prefix: str, owner: str, *place: str) -> None:
        # JSON in strings: a merge patch replaces them whole, nulls and objects too.
        kept = {
            name.removeprefix(prefix): json.dumps(to_jsonable_python(value))
            for name, value in delta.items()
            if name.startswith(prefix)
        }
        if kept:
            self._service.call("PUT", "sessions", key_of(*place), json={"user_id": owner, "expires_at": None})
            self._service.call("PATCH", "sessions", key_of(*place), json={"metadata": kept})
