"""What people were told to do: every block of the two guides, done."""
