"""YOLOv10 in ultralytics (apart.py). FILE holds {"config", "weights", "images"}, and then what was found, in
float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from ultralytics.nn.tasks import DetectionModel, yaml_model_load


def main(path: Path) -> None:
    asked = torch.load(path)
    config = asked["config"]
    scale = [config[name] for name in ("depth_multiple", "width_multiple", "max_channels")]
    layout = {**yaml_model_load("yolov10n.yaml"), "nc": config["num_classes"], "scales": {"n": scale}}
    model = DetectionModel({**layout, "scale": "n"}, verbose=False).double().eval()
    missing, unexpected = model.load_state_dict(asked["weights"], strict=False)
    assert not unexpected, unexpected
    other_head = ("model.23.cv2.", "model.23.cv3.", "model.23.dfl.")  # the one with suppression; the bins
    assert all(name.startswith(other_head) for name in missing), missing
    model.model[-1].end2end = True
    with torch.inference_mode():
        found = model(asked["images"].double().permute(0, 3, 1, 2))
    torch.save(found[0] if isinstance(found, tuple) else found, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
