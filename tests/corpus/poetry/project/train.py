from importlib.metadata import version

import humanize

print(humanize.__name__, version('humanize'))
