"""Runs that survive failures: retries, fallbacks, degradation, and checkpoints."""
