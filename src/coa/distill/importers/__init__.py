"""Readers of what multi-agent systems leave behind: one file for each format, `detect` chooses among them."""
