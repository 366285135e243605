"""Tests on trained models."""
