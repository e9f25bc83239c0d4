"""The parts of ``run``: how a process is ended, judged and recorded."""
