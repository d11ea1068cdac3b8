"""Fetch ShanghaiTech Campus, or check what is here.

python data_scripts/shanghaitech.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("shanghaitech"))
