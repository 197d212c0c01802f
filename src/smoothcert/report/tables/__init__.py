"""Tables of runs and logs."""
