"""Who owns which shard."""
