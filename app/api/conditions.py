"""`If-Match` and `If-None-Match`: entity tags as RFC 9110 has them, read strictly."""

import re
from typing import Annotated

from fastapi import Depends, Header, Request

from app.domain.conditions import Condition, Tags
from app.domain.errors import Fault, InvalidInput

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="Only when the file has one of these tags, as `ETag` has them, separated by commas; `*`: when "
        "there is one. A version in quotes does as well.",
        examples=['"7-64b9c0a1f2e80"'],
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        description="Only when the file has none of these tags; `*`: when there is none.",
        examples=["*"],
    ),
]


# A header may come in several lines: the parameters but the first are for the document alone.
async def _conditions(
    request: Request,
    if_match: IfMatch = None,  # noqa: ARG001
    if_none_match: IfNoneMatch = None,  # noqa: ARG001
) -> Condition:
    return Condition(match=_tags(request, "If-Match"), none_match=_tags(request, "If-None-Match"))


Conditions = Annotated[Condition, Depends(_conditions)]


def _tags(request: Request, header: str) -> Tags | None:
    """Raises InvalidInput for what is no list of tags."""
    lines = request.headers.getlist(header)
    if not lines:
        return None
    given = ", ".join(lines).strip(" \t")
    if given == "*":
        return Tags(any=True)
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for part in _parts(given, header):
        if not (match := _TAG.fullmatch(part)):
            raise _malformed(header)
        found[match[1] is not None].add(match[2])
    return Tags(strong=frozenset(found[False]), weak=frozenset(found[True]))


def _parts(given: str, header: str) -> list[str]:
    """The members of a list; a comma may stand in a tag, and there may be empty members."""
    parts = [part.strip(" \t") for part in re.findall(r'(?:[^,"]|"[^"]*"?)+', given)]
    if not (named := [part for part in parts if part]):
        raise _malformed(header)
    return named


def _malformed(header: str) -> InvalidInput:
    fault = f'Send tags in quotes, as ETag has them, separated by commas, or *: {header}: "7-64b9c0a1f2e80".'
    return InvalidInput(Fault(("header", header), fault))
