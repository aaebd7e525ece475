"""Telling how many tokens a completion took: by the upstream's own figures, else by counting."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.observer import Observer, TokenPurpose
from app.domain.tokens import CountTokens
from app.services.append import counted

Message = Mapping[str, Any]


async def note_tokens(
    observer: Observer,
    count_tokens: CountTokens,
    purpose: TokenPurpose,
    usage: Any,
    *,
    prompt: Sequence[Message],
    reply: Message,
    known: int = 0,
) -> None:
    """`known` are the prompt's tokens that were counted before; without `usage` those of `prompt` are added."""
    reported = _figures(usage)
    if reported is not None:
        observer.tokens_used(purpose, *reported, reported=True)
        return
    *asked, answered = await counted(count_tokens, [*prompt, reply])
    observer.tokens_used(purpose, known + sum(asked), answered, reported=False)


def _figures(usage: Any) -> tuple[int, int] | None:
    """None for what is no usage: upstreams send all kinds of things."""
    if not isinstance(usage, Mapping):
        return None
    figures = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    counts = [value for value in figures if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return (counts[0], counts[1]) if len(counts) == len(figures) else None
