"""From outcomes to numbers, tables and pictures; import the submodule you need (``plots`` loads matplotlib)."""
