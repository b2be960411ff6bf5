"""What is decided about tasks that an agent does."""
