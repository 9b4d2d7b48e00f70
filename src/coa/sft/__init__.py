"""Supervised fine-tuning: trajectories -> a model folder."""
