"""The version of the package, for the records that it writes."""

__version__ = "0.1.0"
