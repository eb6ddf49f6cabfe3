"""The modules of Python itself, whichever Python from 3.10 on is in the image: the host's list is another's."""

from __future__ import annotations

import sys

#: Came or went between Python 3.10 and 3.14: the host's list may lack what the image has, or the other way round.
#: Source: sys.stdlib_module_names of 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14.8, which differ in these.
_IN_SOME = frozenset(
    {
        *("aifc", "annotationlib", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "compression"),
        *("crypt", "distutils", "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev"),
        *("pipes", "smtpd", "sndhdr", "spwd", "sunau", "telnetlib", "tomllib", "uu", "xdrlib"),
    }
)

#: Top-level names. No package of the index is meant by one of them.
STANDARD_MODULES = sys.stdlib_module_names | _IN_SOME

#: Those of every Python. A project may have a package of its own by another's name: ``lib/compression``.
EVERYWHERE = sys.stdlib_module_names - _IN_SOME
