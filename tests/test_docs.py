"""What the documentation says is what the code does."""

from pathlib import Path

from app.config import settings_page

SETTINGS = Path(__file__).parents[1] / "docs" / "settings.md"


def test_the_settings_are_documented():
    assert settings_page() == SETTINGS.read_text(), "run `make docs` and commit docs/settings.md"
