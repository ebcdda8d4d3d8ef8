"""The guards, by the part of the code that they are in."""
