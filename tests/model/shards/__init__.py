"""Several shards in one transaction: two shards, two nodes and a chunk of jobs over both."""
