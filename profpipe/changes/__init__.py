"""Changes that make many programs faster, each applied from outside: `profpipe ab --b change:NAME`, `profpipe try`.

A change is a file: its first sentence says what it does, ``CODE`` what to write into the program instead, and
``ALTERS_NUMERICS`` whether results differ by more than rounding. ``VARIABLES`` are environment variables of the
program's processes, and ``apply(torch)`` is called there when torch has been imported.

For `profpipe try`: ``applies(uses)`` returns why the change does not apply to a program, empty if it does; ``uses`` is
what ``profpipe.hook.observe`` noted. ``PARTS`` are the parts of a step that it can shorten: kernel classes, causes of
waits, or ``idle``; one with ``IS_LIKELY`` comes before all others. Of the changes of one ``KIND`` the fastest is kept.
``AT`` is the place of the code: ``module``, ``before`` its first call, ``optimizers`` or ``loaders``. ``switch(torch,
is_on)`` turns a change that was applied off and on again while the program runs.

The files run in the program's Python, from 3.8 on, so they import the standard library and ``profpipe.hook.changes``
only.
"""
