"""Observing the scheduler: events, counters, logs."""
