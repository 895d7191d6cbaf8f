"""Serving: many callers, several models, one machine kept busy."""
