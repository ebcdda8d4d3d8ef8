"""Changes of all jobs or dead letters that match a filter: in bounded steps, with a cursor and without any state."""
