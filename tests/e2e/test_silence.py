"""What berth leaves on a machine: what it was told to, and nothing else."""

import os
import shutil
import subprocess

from conftest import BERTH, ROOT, add_model


def test_nothing_is_left_in_the_home_folder(serve, tmp_path):
    """ONNX Runtime's official builds keep an id of the machine there, and tell Microsoft of the process."""
    home, models = tmp_path / "home", tmp_path / "models"
    home.mkdir()
    add_model(models, "add", None)
    shutil.copy(ROOT / "tests" / "models" / "add.onnx", models / "add" / "1" / "model.onnx")
    quiet = {"HOME": str(home), "XDG_CACHE_HOME": "", "CI": "", "ORT_DISABLE_TELEMETRY": "0"}
    listed = subprocess.run([BERTH, "models", "--models", models], env=dict(os.environ, **quiet), check=True,
                            capture_output=True, text=True).stdout
    assert "onnx" in listed
    for worker in ("thread", "process"):
        server = serve(models, f"--cpu-worker={worker}", "--load-model", "add", env=quiet)
        assert server.get("/v2/models/add/ready")[0] == 200
        server.stop()
    assert os.listdir(home) == []
