"""View: one web application over everything that any stage wrote."""
