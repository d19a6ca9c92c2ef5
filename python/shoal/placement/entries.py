"""The entries of `component_placement`: read where the rest of the configuration is."""

from shoal.config.entries import Entry, read_entries

__all__ = ["Entry", "read_entries"]
