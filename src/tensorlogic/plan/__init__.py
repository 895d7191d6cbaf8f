"""Graph to plan."""
