"""Fetch SlimPajama-6B as tokens, or check what is here.

python data_scripts/slimpajama.py [--root DIR] [--subset N] [--check] [--tokenizer NAME]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("slimpajama"))
