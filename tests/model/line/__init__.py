"""The line protocol of one shard: two nodes, a few callers, a store that keeps locks and loses answers."""
