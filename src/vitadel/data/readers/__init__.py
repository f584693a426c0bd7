"""One reader per kind of source; each returns a `Source`."""
