"""A harness a backend; `support.harness` has the list of them."""
