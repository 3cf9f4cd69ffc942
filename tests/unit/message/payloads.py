"""Payloads that are drawn at random."""

from __future__ import annotations

from hypothesis import strategies as st

from jobpool.message.payload import LARGEST_INT, SMALLEST_INT

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(SMALLEST_INT, LARGEST_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
