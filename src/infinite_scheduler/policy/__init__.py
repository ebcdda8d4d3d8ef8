"""Pure decisions: no input or output, no clock; every moment is an argument."""
