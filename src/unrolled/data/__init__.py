"""Data sets: shipped with the package, or fetched, verified and cached."""
