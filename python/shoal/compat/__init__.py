"""Compatibility layers: code that imports other packages' modules runs on shoal instead."""
