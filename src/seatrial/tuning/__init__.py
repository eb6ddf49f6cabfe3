"""What `seatrial tune` has measured, written into the user's own files."""
