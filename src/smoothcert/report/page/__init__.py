"""The report page: one HTML file about runs and logs."""
