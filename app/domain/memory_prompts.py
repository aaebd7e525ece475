"""What a model is told about its memory, and when it is reminded to tidy it up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from app.domain.errors import Fault, InvalidInput
from app.domain.memory_lines import lines_of
from app.domain.memory_paths import ROOT

# The second is how the original spells it.
PLACEHOLDERS = ("{store}", "{MEMORIES_ROOT_DIERCTORY}")

REMINDER = (
    "<system-reminder>It is time to consolidate the long-term memory: join what belongs together, shorten what is "
    "long, delete what is wrong or over, and bring the index in line with the files.</system-reminder>"
)

# How much of the index is put into a prompt, where that is asked for.
PRELOADED_LINES = 200
PRELOADED_BYTES = 16_384


def rendered(template: str) -> str:
    """The prompt with the place of the memory filled in; other braces are ordinary text."""
    for placeholder in PLACEHOLDERS:
        template = template.replace(placeholder, ROOT)
    return template.strip()


def has_placeholder(template: str) -> bool:
    return any(placeholder in template for placeholder in PLACEHOLDERS)


def index_part(index: str) -> str:
    """The beginning of the index, for a prompt: whole lines, but where one alone is too long."""
    lines = lines_of(index)
    ends = accumulate(len(line.encode()) + 1 for line in lines[:PRELOADED_LINES])
    count = sum(end <= PRELOADED_BYTES + 1 for end in ends)
    shown = lines[:count] if count or not lines else [lines[0].encode()[:PRELOADED_BYTES].decode(errors="ignore")]
    more = (
        [] if count == len(lines) else ["", f"(The index goes on: it has {len(lines)} lines. View {ROOT}/MEMORY.md.)"]
    )
    return "\n".join([f"## {ROOT}/MEMORY.md", "", *shown, *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What a trigger looks at: the number of this request in its store, seconds since the last reminder (or since the
    store began), and a number from 0 up to 1 that is drawn for it.
    """

    number: int
    seconds_since: float
    drawn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryRequests:
    requests: int

    def __post_init__(self) -> None:
        if self.requests <= 0:
            raise InvalidInput(Fault(("every_requests",), "A reminder comes every 1 or more requests."))

    def fires(self, request: Requests) -> bool:
        return request.number % self.requests == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    seconds: float

    def fires(self, request: Requests) -> bool:
        return request.seconds_since >= self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Probability:
    probability: float

    def fires(self, request: Requests) -> bool:
        return request.drawn < self.probability


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf:
    triggers: "Sequence[Consolidation]"

    def fires(self, request: Requests) -> bool:
        return any(trigger.fires(request) for trigger in self.triggers)


Consolidation = EveryRequests | Every | Probability | AnyOf
