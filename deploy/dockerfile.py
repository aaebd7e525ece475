"""The instructions of a Dockerfile, as far as this repository's one uses the language."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: `RUN --mount=… echo` has the name RUN, one flag and the value `echo`."""

    name: str
    value: str
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The value as a command: the exec form as it is, the shell form through a shell."""
        return json.loads(self.value) if self.value.startswith("[") else ["/bin/sh", "-c", self.value]


@dataclass(frozen=True)
class Stage:
    """What stands between one FROM and the next."""

    name: str
    image: str
    instructions: list[Instruction]

    def last(self, name: str) -> Instruction:
        return [found for found in self.instructions if found.name == name][-1]

    def environment(self) -> dict[str, str]:
        """All ENV of the stage; `$PATH` stays as it is written."""
        pairs = (re.findall(r'(\w+)=("[^"]*"|\S+)', i.value) for i in self.instructions if i.name == "ENV")
        return {name: value.strip('"') for found in pairs for name, value in found}


def read(path: Path) -> list[Stage]:
    """The stages of a Dockerfile. Raises ValueError where it uses what is not known here."""
    stages: list[Stage] = []
    for instruction in _instructions(path.read_text()):
        if instruction.name == "FROM":
            image, _, name = instruction.value.partition(" AS ")
            stages.append(Stage(name or str(len(stages)), image, []))
        else:
            stages[-1].instructions.append(instruction)
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, value = line.partition(" ")
        if name not in _KNOWN:
            raise ValueError(f"{name} is not known here.")
        flags = {}
        while found := re.match(r"--([\w-]+)=(\S+)\s+", value):
            flags[found[1]] = found[2]
            value = value[found.end() :]
        yield Instruction(name, value.strip(), flags)


_KNOWN = frozenset(
    ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "LABEL", "HEALTHCHECK", "STOPSIGNAL", "CMD")
)
