"""One file a link plugin: what it reads, what it plans (pure), and how it applies, checks and removes."""
