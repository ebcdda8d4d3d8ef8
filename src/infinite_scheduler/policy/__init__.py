"""Pure decisions: no I/O and no clock; every moment is an argument."""
