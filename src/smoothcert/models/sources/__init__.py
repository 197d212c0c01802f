"""Where models come from: one module for each kind of file, package or service."""
