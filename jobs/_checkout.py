"""Put the code of this checkout first on `sys.path`; every job imports this module first.

This matters in a second checkout, and where `ray job submit` unpacked an upload while an editable install is in another
folder. Started processes get the path by `PYTHONPATH`; `cluster.ray_session` passes it to the processes of an
existing cluster."""

import os
import sys
from pathlib import Path

CODE = str(Path(__file__).resolve().parents[1] / "platform")

if CODE not in sys.path:
    sys.path.insert(0, CODE)
    os.environ["PYTHONPATH"] = os.pathsep.join([CODE, *filter(None, [os.environ.get("PYTHONPATH")])])
