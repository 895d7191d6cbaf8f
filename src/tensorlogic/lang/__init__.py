"""Text and logic to graphs."""
