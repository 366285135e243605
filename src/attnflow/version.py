"""The version of attnflow, for modules that record which version made a file."""

__all__ = ["__version__"]

__version__ = "0.1.0"
