"""Plan to callable."""
