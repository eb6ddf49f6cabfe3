"""The sections of a receipt, a class each: evidence, judgement and rows."""
