"""Requests for jobs come in: checked here, then accepted durably."""
