"""Fetch the commonsense tasks, through lm-eval, or check what is here.

python data_scripts/commonsense.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("commonsense"))
