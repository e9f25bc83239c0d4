"""Steps of a program from the single launches of a recording: where they begin, and what they hold."""
