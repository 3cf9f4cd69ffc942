"""Schedules: when a job is due in its zone, what was missed, in which order; and what enqueues it then."""
