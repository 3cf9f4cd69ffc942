"""The built-in handler `url`: call a public URL, and return its answer.

The order of one call: read the payload (request.py, target.py: pure). Look the host's name up once and check all its
addresses (addresses.py). Connect to one of those addresses (connection.py). Judge the answer (answer.py).
A forbidden call is `Refused` and never tried again; an error that may pass is a failed attempt.
"""
