"""Memory stores under load: files that one client edits by version, and a file to which all add lines."""

from dataclasses import dataclass, field
from random import Random

from tests.service.load.round_robin import RoundRobin

LINES = "shared.md"


@dataclass
class OwnFile:
    """A file that one client edits. What it may hold: the last acknowledged content, or one that was sent since."""

    store: str
    path: str
    sent: int = 0
    acknowledged: int = 0
    versions: set[int] = field(default_factory=set)
    etag: str | None = None

    async def edit(self, client: RoundRobin) -> str | None:
        """One edit, sent again until it is known to be stored; a fault, or None."""
        self.sent += 1
        condition = {"If-None-Match": "*"} if self.etag is None else {"If-Match": self.etag}
        content = self.content(self.sent)
        answer = await client.insist("PUT", self._url(), content=content, headers=condition)
        if answer.status_code == 412:  # By an earlier sending of the same, whose answer was lost.
            stored = await client.insist("GET", self._url())
            if stored.text != content:
                return f"{self.path} is {stored.text!r} and was refused to become {content!r}."
            answer = stored
        elif answer.status_code in {200, 201}:
            self.versions.add(answer.json()["version"])
        else:
            return f"An edit of {self.path} was answered {answer.status_code}: {answer.text}"
        self.etag = answer.headers["ETag"]
        self.acknowledged = self.sent
        return None

    async def read(self, client: RoundRobin) -> str | None:
        """What was acknowledged is there at once, at every replica."""
        if self.acknowledged == 0:
            return None
        answer = await client.insist("GET", self._url())
        if answer.text != self.content(self.acknowledged):
            return f"{self.path} is {answer.text!r}, and number {self.acknowledged} was acknowledged."
        return None

    async def faults(self, client: RoundRobin) -> list[str]:
        """In the end, of its versions too: the newest 50 are kept."""
        found = [fault for fault in [await self.read(client)] if fault]
        if self.acknowledged:
            history = (await client.insist("GET", self._url("/versions"))).json()["items"]
            kept = {item["version"] for item in history}
            lost = sorted(self.versions)[-len(history) :] if len(history) >= 50 else sorted(self.versions)
            found += [f"Version {version} of {self.path} is lost." for version in lost if version not in kept]
        return found

    def content(self, number: int) -> str:
        return f"{self.path} as of edit {number}\n" * (1 + number % 5)

    def _url(self, what: str = "") -> str:
        return f"/v1/memories/{self.store}/file{what}?path={self.path}"


@dataclass
class SharedLines:
    """A file of lines that several clients insert, each once: such an edit is not sent again."""

    store: str
    sent: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)

    async def create(self, client: RoundRobin) -> None:
        await client.insist("PUT", self._url(), content="")

    async def add(self, client: RoundRobin, chance: Random) -> str | None:
        line = f"line {len(self.sent)} {chance.random()}"
        self.sent.add(line)
        arguments = {"path": LINES, "insertLine": 0, "insertText": line}
        answer = await client.once("POST", f"/v1/users/{self.store}/tools/MemoryInsert", json=arguments)
        if answer is None or answer.status_code == 503:
            return None
        if answer.status_code != 200 or answer.json()["is_error"]:
            return f"A line was answered {answer.status_code}: {answer.text}"
        self.acknowledged.add(line)
        return None

    async def faults(self, client: RoundRobin) -> list[str]:
        lines = (await client.insist("GET", self._url())).text.splitlines()
        found = [f"The line {line!r} was acknowledged, and is lost." for line in self.acknowledged - set(lines)]
        found += [f"The line {line!r} was sent by nobody." for line in set(lines) - self.sent]
        if len(lines) > len(set(lines)):
            found.append("Lines are there twice.")
        return found

    def _url(self) -> str:
        return f"/v1/memories/{self.store}/file?path={LINES}"
