"""Awaited calls: handles, lanes of worker threads, pools of executors, async streams."""
