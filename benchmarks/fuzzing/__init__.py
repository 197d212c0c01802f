"""The parts of ``benchmarks/fuzz.py``: mutations, formats, files to begin with, readers, and watched workers."""
