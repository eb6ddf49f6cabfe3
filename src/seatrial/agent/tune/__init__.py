"""`seatrial tune`: the program that the agent starts in place of the script, which runs the script again and again.

It is a process of the target's like any other: what it finds out goes to $SEATRIAL_EVENTS as reports, no evidence.
"""
