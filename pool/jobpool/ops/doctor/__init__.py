"""`jobpool doctor`: what in the configuration, the machine and the broker loses jobs.

`examination.examine` asks everything. Facts are gathered apart from the judgements, which are pure functions of them.
What a broker's own settings mean is said by its backend (`QueueBackend.diagnose`).
"""
