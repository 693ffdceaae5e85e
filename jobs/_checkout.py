"""Imported first by every job: the code beside these files is what runs, whatever else is installed.

That is so in a second checkout, and where `ray job submit` unpacked an upload while an editable install names another
folder. `PYTHONPATH` tells it to the processes that are started from here; see `raytriever.cluster.session` for those
of a cluster that is joined.
"""

import os
import sys
from pathlib import Path

CODE = str(Path(__file__).resolve().parents[1] / "platform")

if CODE not in sys.path:
    sys.path.insert(0, CODE)
    os.environ["PYTHONPATH"] = os.pathsep.join([CODE, *filter(None, [os.environ.get("PYTHONPATH")])])
