"""Configurations go through transformers and come back equal, whoever wrote them."""

import json
from pathlib import Path

from dspine_jax.config import DrafterConfig, TargetConfig
from tests import peers
from tests.configs import DRAFTER, QWEN3_8B, TARGET
from tests.tiny import tiny_drafter_config, tiny_target_config


def test_configs_survive_transformers(tmp_path):
    target = TargetConfig.from_hf(TARGET)
    drafter = DrafterConfig.from_hf(DRAFTER)
    tiny_target = tiny_target_config()
    tiny_drafter = tiny_drafter_config(tiny_target)
    plain = TargetConfig.from_hf(QWEN3_8B)
    targets = [TARGET, target.to_hf(), tiny_target.to_hf(), QWEN3_8B, plain.to_hf()]
    sent = [*targets, DRAFTER, drafter.to_hf(), tiny_drafter.to_hf()]
    job, answer = tmp_path / "sent.json", tmp_path / "came_back.json"
    job.write_text(json.dumps(sent))
    peers.run(Path(__file__).with_name("torch_config.py"), job, answer)
    came_back = json.loads(answer.read_text())
    assert [TargetConfig.from_hf(config) for config in came_back[:5]] == [target, target, tiny_target, plain, plain]
    assert [DrafterConfig.from_hf(config) for config in came_back[5:]] == [drafter, drafter, tiny_drafter]
