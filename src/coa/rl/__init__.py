"""Agentic RL: tasks and a model folder -> a better model folder, by DAPO with real tools."""
