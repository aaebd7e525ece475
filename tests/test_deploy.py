"""The files that an operator deploys with: what can be told of them without an engine (the rest: deploy/check.py)."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.cli.server import LAST_SECONDS
from app.config import Settings, setting_names
from app.metrics import Metrics
from deploy import dockerfile
from tests.service.process import service

ROOT = Path(__file__).parents[1]
STAGES = dockerfile.read(ROOT / "Dockerfile")
IMAGE = STAGES[-1]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES = COMPOSE["services"]
SECRETS = {"TURNKEEPER_API_KEYS": "a", "POSTGRES_PASSWORD": "b"}
MONITORING = {"METRICS_KEY": "a", "GRAFANA_PASSWORD": "c"}
SECRET = re.compile(r"KEY|PASSWORD|SECRET|TOKEN")


def tool(name, *arguments, **environment):
    """A program of the dependency group `deploy`, which `./run test` installs."""
    program = shutil.which(name, path=sysconfig.get_path("scripts"))
    if program is None:
        pytest.skip(f"{name} is not installed: `./run test` does, or `uv sync --group deploy`")
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [program, *arguments]
    return subprocess.run(
        command, check=False, cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=120
    )


def compose(*options, **environment):
    return tool("docker-compose", "--env-file", os.devnull, *options, "config", "--format", "json", **environment)


def test_docker_compose_takes_the_file():
    made = compose(**SECRETS)
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["services"].keys() == {"turnkeeper", "postgres"}
    with_monitoring = compose("--profile", "monitoring", **SECRETS, **MONITORING)
    assert json.loads(with_monitoring.stdout)["services"].keys() == SERVICES.keys()


@pytest.mark.parametrize("missing", SECRETS)
def test_docker_compose_refuses_to_start_without_a_secret(missing):
    refused = compose(**{name: value for name, value in SECRETS.items() if name != missing})
    assert refused.returncode != 0
    assert f"required variable {missing} is missing a value" in refused.stderr


def test_a_linter_finds_nothing_in_the_dockerfile():
    assert tool("hadolint", "--no-color", "Dockerfile").stdout == ""


def test_every_setting_of_the_compose_file_is_one():
    named = {name for name in SERVICES["turnkeeper"]["environment"] if name.startswith("TURNKEEPER_")}
    # Those that are only put into other values as well: the service refuses a `.env` with a setting it does not know.
    named |= set(re.findall(r"\$\{(TURNKEEPER_\w+)", COMPOSE_TEXT))
    assert named <= set(setting_names())
    assert {name for name in IMAGE.environment() if name.startswith("TURNKEEPER_")} <= set(setting_names())


def test_no_secret_has_a_default():
    values = [
        (name, str(value))
        for each in SERVICES.values()
        for name, value in each.get("environment", {}).items()
        if SECRET.search(f"{name} {value}")
    ]
    assert {"TURNKEEPER_API_KEYS", "TURNKEEPER_DATABASE_URL", "POSTGRES_PASSWORD"} <= dict(values).keys()
    for name, value in values:
        asked_for = re.findall(r"\$\{\w+:(\?[^}]+|-)\}", value)
        assert asked_for or value.startswith("/run/secrets/"), name
    assert all(source.keys() == {"environment"} for source in COMPOSE["secrets"].values())
    assert not any(SECRET.search(name) for stage in STAGES for name in stage.environment())


def test_every_image_has_a_version():
    images = [stage.image for stage in STAGES] + [s["image"] for s in SERVICES.values() if "image" in s]
    for image in images:
        assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", image), image
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert len({stage.image for stage in STAGES}) == 1, "the environment of one Python would run on another"


def test_the_image_has_a_python_that_the_package_takes():
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    version = re.search(r":(\d+)\.(\d+)", IMAGE.image)
    assert [int(part) for part in version.groups()] >= [int(part) for part in re.findall(r"\d+", lowest)]


def test_the_image_is_what_the_lock_says_without_tools():
    syncs = [i.value for stage in STAGES for i in stage.instructions if i.name == "RUN" and "uv sync" in i.value]
    assert len(syncs) == 2
    assert all("--locked" in sync and "--no-dev" in sync and "embedded" not in sync for sync in syncs)
    assert not [i for i in IMAGE.instructions if i.name == "RUN"], "the last stage only takes over what was built"


def test_the_service_is_not_root_and_may_write_nothing():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", IMAGE.last("USER").value)
    assert IMAGE.instructions.index(IMAGE.last("USER")) > max(
        index for index, found in enumerate(IMAGE.instructions) if found.name == "COPY"
    )
    hardened = SERVICES["turnkeeper"]
    assert hardened["read_only"] is True
    assert hardened["cap_drop"] == ["ALL"]
    assert hardened["security_opt"] == ["no-new-privileges:true"]


def test_the_build_gets_what_it_copies_and_nothing_else():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = [i for stage in STAGES for i in stage.instructions if i.name == "COPY" and "from" not in i.flags]
    sources = {source for found in copied for source in found.value.split()[:-1]}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)
    assert not any(fnmatch(".env", rule) for rule in let_in)


def test_the_health_check_asks_whether_the_process_answers(database_url):
    _, _, command = IMAGE.last("HEALTHCHECK").value.partition("CMD ")
    program, *arguments = json.loads(command)
    assert "/healthz" in arguments[-1]

    def checked(port):
        environment = os.environ | {"TURNKEEPER_PORT": str(port)}
        assert program == "python"
        command = [sys.executable, *arguments]
        return subprocess.run(command, check=False, env=environment, capture_output=True, timeout=60).returncode

    # Also where the service answers for one name only: it is not asked by that name.
    with service(database_url=database_url, api_keys="key", allowed_hosts="memory.example") as running:
        port = running.url().rsplit(":", 1)[1]
        assert checked(port) == 0
    assert checked(port) != 0


def test_stopping_waits_longer_than_the_service_takes():
    patience = int(SERVICES["turnkeeper"]["stop_grace_period"].removesuffix("s"))
    assert patience >= Settings.model_fields["shutdown_grace_seconds"].default + LAST_SECONDS
    assert IMAGE.last("STOPSIGNAL").value == "SIGTERM"
    assert IMAGE.last("CMD").value.startswith("["), "a shell would not pass the signal on"


def test_nothing_is_published_beyond_this_machine_unless_asked():
    published = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert published
    assert all(re.fullmatch(r"\$\{\w+:-127\.0\.0\.1:\d+\}:\d+", port) for port in published)


def test_one_port_everywhere():
    port = IMAGE.environment()["TURNKEEPER_PORT"]
    assert port == IMAGE.last("EXPOSE").value == str(Settings.model_fields["port"].default)
    assert SERVICES["turnkeeper"]["environment"]["TURNKEEPER_PORT"] == port
    assert SERVICES["turnkeeper"]["ports"][0].endswith(f":{port}")
    assert scrape()["dns_sd_configs"] == [{"names": ["turnkeeper"], "type": "A", "port": int(port)}]


def test_the_service_waits_for_a_database_that_answers():
    assert SERVICES["turnkeeper"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    # Over TCP, where the server that only prepares a new database does not listen.
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def test_every_file_that_is_mounted_is_there():
    mounts = [volume.split(":") for each in SERVICES.values() for volume in each.get("volumes", ())]
    for source, *_ in mounts:
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    used = {secret for each in SERVICES.values() for secret in each.get("secrets", ())}
    assert used == COMPOSE["secrets"].keys()
    assert scrape()["authorization"]["credentials_file"] == "/run/secrets/metrics_key"


def scrape():
    return yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"][0]


def test_every_figure_of_the_dashboard_and_the_alerts_is_one():
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/turnkeeper.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    alerts = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"][0]["rules"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in alerts]
    known = labels_of_series()
    for query in queries:
        series = re.findall(r"turnkeeper_\w+", query)
        assert set(series) <= known.keys(), query
        used = set(re.findall(r"[{,](\w+)=", query))
        used |= {name for by in re.findall(r"by \(([^)]+)\)", query) for name in by.split(", ")}
        assert used <= {"job", "le"}.union(*(known[name] for name in series)), query
    unseen = {family for family in families() if not any(family in query for query in queries)}
    assert unseen == set(), "shown nowhere"


def test_the_dashboard_asks_the_source_that_is_provisioned():
    folder = ROOT / "deploy/grafana"
    sources = yaml.safe_load((folder / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    for file in (folder / "dashboards").glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            assert panel["type"] == "row" or panel["datasource"]["uid"] == sources[0]["uid"]
    provider = yaml.safe_load((folder / "provisioning/dashboards/turnkeeper.yml").read_text())["providers"][0]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def families():
    return [family.name for family in Metrics().registry.collect()]


def labels_of_series():
    """The names of all series of the service, with the labels that they carry."""
    collectors = Metrics().registry._names_to_collectors
    return {name: set(collector._labelnames) for name, collector in collectors.items()}


def test_the_page_names_settings_and_variables_that_there_are():
    page = (ROOT / "docs/deploy.md").read_text()
    assert set(re.findall(r"TURNKEEPER_\w+", page)) <= set(setting_names())
    own = {"PUBLISH_ADDRESS", "POSTGRES_PASSWORD", *MONITORING}
    assert (
        own == set(re.findall(rf"\b({'|'.join(own)})\b", page)) == own & set(re.findall(r"[A-Z_]{5,}", COMPOSE_TEXT))
    )
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
