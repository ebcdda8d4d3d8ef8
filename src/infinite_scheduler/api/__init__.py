"""The HTTP door: one table of operations makes the routes, their description and their reference.

`operations.py` has the table, `router.py` turns it into routes, `http_server.py` runs them inside an event loop.
"""
