"""Every SQL statement of the service. Methods are named by intent and return domain values."""
