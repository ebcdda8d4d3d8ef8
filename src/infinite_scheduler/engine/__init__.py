"""The right job at the right moment: window, wheel, dispatch, settle."""
