"""The transactions of the line protocol: what anybody may run, and what only the owner of a shard may."""
