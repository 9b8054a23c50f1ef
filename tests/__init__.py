"""Tests of pgturnstile; the folders mirror the source."""
