"""Fetch FineWeb-Edu as tokens, or check what is here.

python data_scripts/fineweb_edu.py [--root DIR] [--subset N] [--check] [--tokenizer NAME]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("fineweb_edu"))
