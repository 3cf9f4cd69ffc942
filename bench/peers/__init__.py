"""Other queues and pools, run beside jobpool. These modules run in an environment of their own: see environment.py."""
