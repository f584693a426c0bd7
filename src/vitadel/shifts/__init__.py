"""What the world does to an image, no model involved."""
