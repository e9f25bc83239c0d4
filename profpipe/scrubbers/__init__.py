"""What is taken out of a file, one module a format; ``scrub.py`` puts the copy that they make in its place."""
