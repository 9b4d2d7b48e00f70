"""What SFT and RL share: packed rows, attention per sample, the loss at the labels, checkpoints."""
