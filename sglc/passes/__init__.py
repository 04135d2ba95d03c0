"""Rewrites of programs, and the last one, which lowers a program to a plan."""
