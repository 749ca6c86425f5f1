"""Divide the work of a plan over the physical cores of a logical one."""
