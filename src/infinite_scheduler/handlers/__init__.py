"""What happens when a job is due: the port of handlers and its adapters."""
