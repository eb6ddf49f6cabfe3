"""Refused, with the way out."""

from ..refused import refuse_elastic

refuse_elastic()
