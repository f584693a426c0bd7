"""What `import vitadel as vd` offers, one module per function; the command line calls the same functions."""
