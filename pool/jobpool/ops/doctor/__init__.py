"""`jobpool doctor`: what in the configuration, the machine and the broker loses jobs.

`examination.examine` asks everything. Facts are gathered apart from the judgements, which are pure functions of them.
Each backend judges its broker's own settings (`QueueBackend.diagnose`).
"""
