"""Many attachments at once, by processes that kill plugins at random times; what they saw is a history to be judged."""
