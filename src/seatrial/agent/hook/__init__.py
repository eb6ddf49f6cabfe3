"""Run inside the target's Python: memory limits, and the measuring of an unmodified script's steps.

``install`` is the agent's. All else is copied into a folder of the run as the package ``seatrial_hook`` and runs in the
target's interpreter, whichever that is, so it imports the standard library and itself, and runs on Python 3.8.
"""
