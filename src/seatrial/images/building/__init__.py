"""Building an image, checking that its framework and the script work, and measuring its contents."""
