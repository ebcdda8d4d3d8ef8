"""Jobs in a SQL database: one protocol over small dialects."""
