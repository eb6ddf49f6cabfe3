"""What every page shares: one style sheet, one frame, one drawing of charts (docs/decisions.md, 0049)."""
