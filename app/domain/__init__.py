"""The rules, without I/O: events, filters, turns, tool-call integrity, tokens."""
