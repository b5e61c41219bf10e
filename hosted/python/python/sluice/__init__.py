"""Language models on CPUs, with answers that are the same bits on every machine."""

from sluice._native import __version__

__all__ = ["__version__"]
