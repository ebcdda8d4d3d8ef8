"""A store that nodes work on elsewhere, asked over HTTP."""
