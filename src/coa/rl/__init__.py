"""Reinforcement learning: tasks and a checkpoint in, a better checkpoint out."""
