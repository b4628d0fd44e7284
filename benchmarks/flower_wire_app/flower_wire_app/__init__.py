"""A model of any size, for counting bytes."""
