"""The parts of ``benchmarks/fuzz.py``: mutations, formats, real files to begin with, readers, and the watched workers."""
