"""Fetch CUHK Avenue, or check what is here.

python data_scripts/avenue.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("avenue"))
