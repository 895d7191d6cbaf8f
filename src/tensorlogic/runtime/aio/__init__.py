"""Awaited calls: handles, queues of worker threads, pools of executors, async streams."""
