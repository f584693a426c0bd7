"""See the modules inside."""
