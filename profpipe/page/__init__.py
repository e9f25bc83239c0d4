"""The parts of ``report``: findings -> sentences, tables and plots of the page."""
