"""Reading what `/metrics` says."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families


class Figures:
    """One scrape."""

    def __init__(self, response, since=None):
        assert response.status_code == 200, response.text
        self.families = list(text_string_to_metric_families(response.text))
        self.since = since

    def samples(self):
        return [sample for family in self.families for sample in family.samples]

    def value(self, name, **labels):
        """The sum of the samples of a name whose labels are, among others, these; what was there before is not."""
        before = 0 if self.since is None else self.since.value(name, **labels)
        return -before + sum(
            sample.value
            for sample in self.samples()
            if sample.name == f"turnkeeper_{name}" and labels.items() <= sample.labels.items()
        )


async def scraped(http, since=None):
    return Figures(await http.get("/metrics"), since)


async def until(http, condition, since=None):
    """The first scrape that the condition holds for."""
    async with asyncio.timeout(30):
        while not condition(figures := await scraped(http, since)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return figures
