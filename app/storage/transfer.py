"""Everything that is held, out and in again without loss."""
