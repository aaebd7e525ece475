"""What a chat request need not say: the settings that are written like parts of one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from app.api.chat_schemas import CompactionBody, ConsolidationBody, MemoryBody, MessageFilterBody
from app.api.schemas import FilterBody
from app.config import PREFIX, Settings, SettingsError
from app.domain import ids
from app.domain.chat import ChatCompaction, ChatOptions
from app.domain.compaction import Summarize
from app.domain.errors import InvalidInput
from app.domain.filters import EventFilter
from app.domain.memory_prompts import PLACEHOLDERS, Consolidation, has_placeholder

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """`consolidation` tells when a model is reminded to consolidate its memory; None: never by itself."""

    event_filter: EventFilter
    options: ChatOptions
    memory_prompt: str
    consolidation: Consolidation | None


def chat_defaults(settings: Settings) -> ChatDefaults:
    """Raises SettingsError, which names the setting and what is wrong with it."""
    if fault := ids.fault_of_user_id(settings.chat_default_user_id):
        raise SettingsError(f"{PREFIX}CHAT_DEFAULT_USER_ID: {fault}")
    options = ChatOptions(on_busy=settings.chat_on_busy, max_context_tokens=settings.chat_max_context_tokens)
    memory = {
        "message_filter": settings.chat_message_filter,
        "compaction": settings.chat_compaction,
    }
    for name, value in memory.items():
        if value is not None:
            _checked(f"CHAT_{name.upper()}", _MODELS[name], value)
    given = {name: value for name, value in memory.items() if value is not None}
    own = _checked(
        "CHAT_MEMORY", MemoryBody.model_validate, {**given, **_object("CHAT_MEMORY", settings.chat_memory)}
    )
    if own.store is not None and (fault := ids.fault_of_store_id(own.store)):
        raise SettingsError(f"{PREFIX}CHAT_MEMORY: store: {fault}")
    options = _checked("CHAT_MEMORY", own.over, options)
    _check_summarizer(options.compaction, settings)
    return ChatDefaults(
        event_filter=_checked("CHAT_FILTER", _filter, _object("CHAT_FILTER", settings.chat_filter)),
        options=options,
        memory_prompt=_memory_prompt(settings),
        consolidation=None
        if settings.memory_consolidation is None
        else _checked("MEMORY_CONSOLIDATION", _consolidation, settings.memory_consolidation),
    )


def _object(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{PREFIX}{name}: Write a JSON object, as it stands in a request.")
    return value


def _check_summarizer(due: ChatCompaction | None, settings: Settings) -> None:
    """A model that may not be used would be refused with every chat."""
    model = due.strategy.model if due is not None and isinstance(due.strategy, Summarize) else None
    if model is not None and settings.upstream_models is not None and model not in settings.upstream_models:
        allowed = ", ".join(sorted(settings.upstream_models))
        raise SettingsError(f"{PREFIX}CHAT_COMPACTION: {model!r} is none of {PREFIX}UPSTREAM_MODELS: {allowed}.")


def _consolidation(value: Any) -> Consolidation:
    return ConsolidationBody.model_validate(value).to_domain()


def _memory_prompt(settings: Settings) -> str:
    """The template, which has to say where the memory is."""
    if settings.memory_prompt_file is None:
        return (Path(__file__).parent.parent / "prompts" / "memory.md").read_text("utf-8")
    name = f"{PREFIX}MEMORY_PROMPT_FILE"
    try:
        template = settings.memory_prompt_file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: the file cannot be read: {error}") from None
    if not has_placeholder(template):
        raise SettingsError(f"{name}: the template has no placeholder {PLACEHOLDERS[0]} for where the memory is.")
    return template


def _filter(value: Any) -> EventFilter:
    return FilterBody.model_validate(value).to_filter()


_MODELS: dict[str, Callable[[Any], Any]] = {
    "message_filter": lambda value: MessageFilterBody.model_validate(value).to_domain(),
    "compaction": lambda value: CompactionBody.model_validate(value).to_domain(),
}


def _checked(name: str, read: Callable[[Any], Value], value: Any) -> Value:
    try:
        return read(value)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"{PREFIX}{name}: {place}: {message}" if place else f"{PREFIX}{name}: {message}"
        ) from None
    except InvalidInput as error:
        raise SettingsError(f"{PREFIX}{name}: {error}") from None
