"""Models compared: the table, fits through models, figures, and files of all of it."""
