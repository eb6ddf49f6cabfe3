"""What every page shares: one style sheet, one frame, one drawing of charts (docs/decisions/0049-one-product.md)."""
