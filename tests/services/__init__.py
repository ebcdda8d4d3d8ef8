"""Real databases and Apache Kafka for the tests: private, on loopback, with data of their own below `.services/`."""
