"""Guards taken out of the code, one at a time: the tests that should see it must turn red."""
