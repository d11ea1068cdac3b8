"""Fetch MNLI, tested on matched genres, or check what is here.

python data_scripts/mnli.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("mnli"))
