"""Log, metrics and HTTP endpoint of a program that keeps running."""
