"""Which node owns which shard."""
