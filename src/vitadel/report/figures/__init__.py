"""Figures: of runs, of exhibits, and the gallery of attacked images."""
