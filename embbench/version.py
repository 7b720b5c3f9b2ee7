"""The version of this package; any change of what a number means raises it."""

__version__ = "0.1.0"
