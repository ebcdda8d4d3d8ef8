"""Requests come in: checked here, then accepted durably."""
