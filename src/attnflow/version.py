"""The version of attnflow, for modules that record which version made a file."""

__version__ = "0.1.0"
