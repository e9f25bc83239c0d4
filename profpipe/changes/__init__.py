"""Changes that make many programs faster, each applied from outside, for `profpipe ab --b change:NAME`.

A change is a file: its first sentence says what it does, ``CODE`` what to write into the program instead, and
``ALTERS_NUMERICS`` whether results differ by more than rounding. ``VARIABLES`` are environment variables of the
program's processes, and ``apply(torch)`` is called there when torch has been imported. The files run in the program's
Python, from 3.8 on, so they import the standard library and ``profpipe.hook.changes`` only.
"""
