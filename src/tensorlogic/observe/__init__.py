"""What happened: traces, and what they say."""
