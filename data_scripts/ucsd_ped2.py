"""Fetch UCSD Ped2, or check what is here.

python data_scripts/ucsd_ped2.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("ucsd_ped2"))
