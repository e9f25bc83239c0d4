"""The tables, the results folder and the database."""
