"""Prepare ImageNet-1k, which only you can get, or check what is here.

python data_scripts/imagenet_1k.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("imagenet_1k"))
