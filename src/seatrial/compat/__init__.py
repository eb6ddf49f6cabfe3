"""Packages that stand in for others in the target's Python, where those are not installed.

They are copied next to the target (``agent.hook.install``), under the names of what they stand in for. They
import torch, the standard library and themselves, and run on Python 3.8.
"""
