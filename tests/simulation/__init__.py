"""Several real nodes over one simulated database, in virtual time: every run follows from one seed."""
