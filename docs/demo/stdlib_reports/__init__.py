"""The demo's app: one report a package of the Python standard library. Explained in docs/cookbook.md."""
