"""From the traces of any multi-agent team to trajectories worth training on."""
