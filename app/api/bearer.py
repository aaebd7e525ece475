"""The credential of a request, as its one `Authorization` header has it."""

from starlette.datastructures import Headers

from app.domain.errors import Unauthorized


def bearer_of(headers: Headers) -> str:
    """Empty where there is none. Raises Unauthorized for several: a proxy may have checked another than we take."""
    given = headers.getlist("authorization")
    if len(given) > 1:
        raise Unauthorized("Send one Authorization header, not several.")
    scheme, _, credential = (given[0] if given else "").partition(" ")
    # Blanks and tabs alone: by whatever else was taken off, one credential could be written in many ways.
    return credential.strip(" \t") if scheme.lower() == "bearer" else ""
