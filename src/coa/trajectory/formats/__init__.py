"""Shapes that other programs read and write, one file each."""
