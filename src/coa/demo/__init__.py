"""The demo: teach, distil, fine-tune, reinforce and evaluate on the embedded world."""
