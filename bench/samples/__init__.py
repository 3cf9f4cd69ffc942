"""The programs that measure one sample each, in a process of their own: `bench.programs.sample` runs them."""
