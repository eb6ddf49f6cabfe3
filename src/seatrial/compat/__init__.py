"""Packages that stand in for others in the target's Python, where those are not installed.

They are copied beside the target (``agent.hook.stand_ins``), under the names of what they stand in for, and import torch,
the standard library and themselves. They run on Python 3.8.
"""
