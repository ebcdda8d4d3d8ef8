"""Real database servers for the tests: private, on loopback, with data of their own below `.services/`."""
