"""`make bench`: ours and the Go plugins, alternately in one run (python -m tests.bench --help)."""
