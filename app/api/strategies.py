"""Triggers and strategies of compaction on the wire: in chats, in `/compact` and in the settings."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.domain import compaction

_MOST = 2**31 - 1


class Choice(BaseModel):
    """An object with exactly one of its fields: the name of the field is the kind."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _exactly_one(self) -> "Choice":
        if len(self.model_fields_set) != 1 or self.chosen is None:
            raise ValueError(f"Send exactly one of {', '.join(type(self).model_fields)}.")
        return self

    @property
    def chosen(self) -> Any:
        return getattr(self, next(iter(self.model_fields_set)))


class Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Trigger(Choice):
    """When a session is compacted."""

    turns: int | None = Field(None, ge=1, le=_MOST, description="With more turns than this in the active window.")
    tokens: int | None = Field(None, ge=1, le=_MOST, description="With this many active tokens or more.")
    any: "list[Trigger] | None" = Field(None, min_length=1, max_length=20, description="When one of these fires.")

    def to_domain(self) -> compaction.Trigger:
        if self.turns is not None:
            return compaction.Turns(turns=self.turns)
        if self.tokens is not None:
            return compaction.Tokens(tokens=self.tokens)
        return compaction.Any(triggers=tuple(trigger.to_domain() for trigger in self.any or ()))


class SlidingWindow(Figures):
    """Keeps the newest real events."""

    max_events: int = Field(20, ge=1, le=_MOST, description="Real events to keep.")

    def to_domain(self) -> compaction.Strategy:
        return compaction.SlidingWindow(max_events=self.max_events)


class TurnWindow(Figures):
    """Keeps the newest turns, and what precedes the first turn."""

    max_turns: int = Field(10, ge=1, le=_MOST, description="Turns to keep.")

    def to_domain(self) -> compaction.Strategy:
        return compaction.TurnWindow(max_turns=self.max_turns)


class TokenBudget(Figures):
    """Keeps the newest turns that fit."""

    max_tokens: int = Field(4000, ge=1, le=_MOST, description="Tokens of what stays active.")

    def to_domain(self) -> compaction.Strategy:
        return compaction.TokenBudget(max_tokens=self.max_tokens)


class Summarize(Figures):
    """Keeps the newest real events behind a rolling summary, which the upstream LLM writes."""

    max_events: int = Field(10, ge=1, le=_MOST, description="Real events to keep.")
    overlap: int = Field(2, ge=0, le=_MOST, description="Kept events shown to the summarizer; less than max_events.")
    system_prompt: str | None = Field(None, description="Instructions to the summarizer, instead of the built-in.")
    shadow_prompt: str | None = Field(None, description="The question that the summary stands as the answer to.")
    model: str | None = Field(None, description="The model to summarize with.")

    def to_domain(self) -> compaction.Strategy:
        return compaction.Summarize(
            max_events=self.max_events,
            overlap=self.overlap,
            system_prompt=self.system_prompt,
            shadow_prompt=self.shadow_prompt,
            model=self.model,
        )


class Strategy(Choice):
    """What stays active."""

    sliding_window: SlidingWindow | None = Field(None, description="The newest events.")
    turn_window: TurnWindow | None = Field(None, description="The newest turns.")
    token_budget: TokenBudget | None = Field(None, description="The newest turns that fit.")
    summarize: Summarize | None = Field(None, description="The newest events, and a summary of the others.")

    def to_domain(self) -> compaction.Strategy:
        chosen: SlidingWindow | TurnWindow | TokenBudget | Summarize = self.chosen
        return chosen.to_domain()
