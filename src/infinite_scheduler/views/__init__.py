"""What jobs, apps, nodes, shards, topics and dead letters look like to people: one place for every door.

Functions turn what the store says into frozen values. The JSON of a view is its msgspec encoding; tables and colours
are drawn from views elsewhere. Nothing here asks a store or reads a clock.
"""
