"""Who calls, and what that credential reaches: service keys everything, tokens what they are bound to."""

from dataclasses import dataclass
from typing import Literal, get_args

from app.domain import ids
from app.domain.errors import NotYours, ScopeMissing, ServiceKeyNeeded, SessionNotFound

Scope = Literal["read", "write", "search", "memory", "chat"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Bound to a user, to one session of a user (then both are set), or, as a service key is, to nothing.

    `session_key` is the inner key of that session: one that is created anew under its id is another session.
    """

    scopes: frozenset[Scope] = SCOPES
    user_id: str | None = None
    session_id: str | None = None
    session_key: int | None = None

    @property
    def is_service_key(self) -> bool:
        return self.user_id is None

    def check_service_key(self, what: str) -> None:
        """Raises ServiceKeyNeeded. `what`: what only a service key may do, the beginning of a sentence."""
        if not self.is_service_key:
            raise ServiceKeyNeeded(what)

    def check_scope(self, scope: Scope) -> None:
        """Raises ScopeMissing."""
        if scope not in self.scopes:
            raise ScopeMissing(scope, sorted(self.scopes))

    def check_owner(self, user_id: str) -> None:
        """Whether this user may be named as the owner of what is asked for. Raises NotYours."""
        if self.user_id not in {None, user_id}:
            raise NotYours(f"This token is bound to another user than {user_id!r}.")

    def check_all_of_user(self, user_id: str) -> None:
        """Whether all that a user has is reached. Raises NotYours."""
        self.check_owner(user_id)
        if self.session_id is not None:
            raise NotYours("This token is bound to one session: it does not reach all of its user's.")

    def check_store(self, store: str) -> None:
        """Raises NotYours, ServiceKeyNeeded."""
        if store.startswith(ids.SHARED):
            self.check_service_key("A shared store is reached")
        if self.user_id not in {None, store}:
            raise NotYours(f"This token is bound to another user than that of the store {store!r}.")

    def check_session(self, session_id: str, owner: str | None) -> None:
        """`owner`: whose the session is, None where there is none. Raises SessionNotFound, also for one of others."""
        is_foreign = owner is not None and self.user_id not in {None, owner}
        if is_foreign or self.session_id not in {None, session_id}:
            raise SessionNotFound(session_id)


SERVICE_KEY = Credential()
