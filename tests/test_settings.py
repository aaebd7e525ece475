"""Settings that cannot work stop the start with a sentence that names them, instead of failing some day."""

import pytest

from app.config import Settings, SettingsError, load_settings, setting_names
from app.domain.tokens import counter

NUMBERS = {
    name: field for name, field in Settings.model_fields.items() if field.annotation in (int, float, int | None)
}
LISTS = ("api_keys", "allowed_hosts", "upstream_models", "upstream_replay_fields", "token_secret")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No `.env` and no variables of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in setting_names():
        monkeypatch.delenv(name, raising=False)


def refusal(monkeypatch, name, value):
    monkeypatch.setenv(f"TURNKEEPER_{name.upper()}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert f"TURNKEEPER_{name.upper()}: " in str(refused.value)


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", str(10**20), "-1", "", "much"])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_endless(monkeypatch, name, value):
    if value == "":  # As compose passes on what is not set.
        monkeypatch.setenv(f"TURNKEEPER_{name.upper()}", value)
        assert getattr(load_settings(), name) == NUMBERS[name].default
    else:
        refusal(monkeypatch, name, value)


@pytest.mark.parametrize("value", [",", " , ,"])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_nothing_is_no_list(monkeypatch, name, value):
    """Keys of which none is one would leave a service open that somebody meant to close."""
    refusal(monkeypatch, name, value)


@pytest.mark.parametrize("url", ["api.example", "http://", "http://[::1", "http://h:port/v1", "http://h:99999/v1"])
def test_an_upstream_that_is_no_url_is_told(monkeypatch, url):
    refusal(monkeypatch, "upstream_url", url)


def test_the_price_of_a_picture_never_overflows_the_log():
    parts = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}] * 3_000
    assert counter(1_000_000)({"role": "user", "content": parts}) == 2**31 - 1
