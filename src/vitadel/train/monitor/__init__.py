"""What is measured while a model trains."""
