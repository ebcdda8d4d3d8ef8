"""Watching the scheduler: events, counters, logs."""
