"""JavaScript functions of designs, in processes that can do nothing but compute.

`child.py` is the program of such a process and imports nothing of uprmc; `harness.js` is what it
puts around the functions.
"""
