"""`turnkeeper demo`: the story in a minute."""


def demo() -> None:
    """Show what the service does, on throw-away data."""
    raise NotImplementedError
