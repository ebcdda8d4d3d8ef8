"""The real command as processes, from the built wheel: kill -9, restart, two nodes, a disk that is full."""
