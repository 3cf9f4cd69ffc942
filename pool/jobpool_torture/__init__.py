"""`jobpool torture`: pools under kills, stops, bad networks and moved clocks, and a count of what became of each job.

Pools run as real programs (`fleet`), each with a network (`network`) and a clock (`clocks`) of its own. A `schedule`
says which fault strikes when, the `nemesis` strikes it, and `oracle` judges what the `ledger` recorded.
"""
