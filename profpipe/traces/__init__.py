"""Recordings as traces for ui.perfetto.dev and its trace processor."""
