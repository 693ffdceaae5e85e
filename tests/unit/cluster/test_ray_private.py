"""Undocumented Ray: still there in the installed version."""

from __future__ import annotations

import subprocess
import sys


def test_private_modules_are_imported_when_a_function_is_called() -> None:
    program = "import sys, raytriever.cluster.ray_private; print([name for name in sys.modules if name == 'ray'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_private_names_exist_in_the_installed_ray() -> None:
    from ray._private import auto_init_hook, services, state

    assert callable(services.canonicalize_bootstrap_address)
    assert callable(state.state.get_max_resources_from_cluster_config)
    assert isinstance(auto_init_hook.enable_auto_connect, bool)
