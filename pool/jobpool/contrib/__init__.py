"""Adapters for frameworks. Each is imported only by programs that name it, with the framework it is for."""
