"""Explicit-state models of docs/concepts/line-protocol.md, searched exhaustively for small cases."""
