"""What happens at the moment: the port of handlers and its adapters."""
