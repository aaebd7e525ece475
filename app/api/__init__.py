"""HTTP only: parse, authorise, call, render."""
