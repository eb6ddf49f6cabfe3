"""From facts to verdicts: criteria, the cause of the end, measurements, and how far evidence can be trusted."""
