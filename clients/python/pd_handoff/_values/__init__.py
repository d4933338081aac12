"""Conversions of single values: numbers, arrays, durations, JSON. Private."""
