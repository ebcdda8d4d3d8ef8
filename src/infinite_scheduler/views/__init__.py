"""What jobs, apps, nodes, shards, topics and dead letters look like to people: one place for every door."""
