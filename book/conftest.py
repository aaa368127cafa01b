"""For pytest --nbval: a busy machine is no difference between two runs of a chapter, so its warning stays out."""

import os

os.environ.setdefault("PYTHONWARNINGS", "ignore:this machine was busy")
