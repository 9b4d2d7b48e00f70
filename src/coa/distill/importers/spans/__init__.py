"""Spans of OpenTelemetry, in whichever dialect, read as team runs."""
