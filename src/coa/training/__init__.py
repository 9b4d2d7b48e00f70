"""What SFT and RL share: rows without padding, attention per sample, the loss where labels are, checkpoints."""
