# -*- coding: utf-8 -*-
from __future__ import print_function, division

from typing import List


def total(values):  # type: (List[int]) -> int
    return sum(values)


print("%d" % total([1, 2]))
