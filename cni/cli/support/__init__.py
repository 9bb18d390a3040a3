"""The bundle for remote support: its parts, their secrets, and the archive."""
