"""Scan: findings over many runs, each with the step where it is."""
