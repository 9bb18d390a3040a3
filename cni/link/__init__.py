"""Attachments: the dispatcher, the verbs, the plugins, the features."""
