"""The compiled form. `setup.py` compiles these modules; they are used in no other way."""
