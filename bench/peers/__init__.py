"""Other queues and pools, run beside jobpool. What is here runs in an environment of their own: see environment.py."""
