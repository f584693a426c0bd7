"""From taps, models and rows to numbers."""
