"""Streams: a graph over more rows than memory holds, from sources in chunks to sinks."""
