"""The start-up hook of commands, and the marks that a program sets by hand.

``startup/`` is put first on PYTHONPATH, so all Python processes of a command execute its ``sitecustomize.py``. The
hook finds the steps of an unmodified PyTorch program and records them. It imports the standard library and torch only,
and works from Python 3.8 on.
"""
