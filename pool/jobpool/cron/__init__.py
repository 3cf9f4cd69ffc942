"""Schedules: when a job is due in its zone, what was missed, in which order; and what enqueues it then.

`schedule` (upon `calendar` and `timeline`), `misfire` and `order` are pure: no clock, no broker.
"""
