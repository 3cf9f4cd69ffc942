"""What tests share: harnesses of the backends, builders of jobs, waiting with a limit."""
