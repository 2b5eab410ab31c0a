"""What vLLM itself makes, offline: `python vllm_offline.py MODEL`, in vLLM's environment.

Standard input: a JSON list of `[prompt, parameters]`, the prompt being a user's turn. Standard output, its last line:
a JSON list of `{"text", "tokens", "reason", "logprobs"}`, the last a table by ids for each token. Each request is
computed alone.
"""

import json
import os
import sys

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    OMP_NUM_THREADS="1",
    TORCHDYNAMO_DISABLE="1",
)

from vllm import LLM, SamplingParams


def main(model: str) -> None:
    asked = json.load(sys.stdin)
    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=1024, kv_cache_memory_bytes=128 << 20)
    made = []
    for prompt, params in asked:
        turns = [{"role": "user", "content": prompt}]
        first = llm.chat(turns, SamplingParams(**params), use_tqdm=False)[0].outputs[0]
        logprobs = [{token: each.logprob for token, each in among.items()} for among in first.logprobs or ()]
        tokens, reason = list(first.token_ids), first.finish_reason
        made.append({"text": first.text, "tokens": tokens, "reason": reason, "logprobs": logprobs})
    sys.stdout.write(f"\n{json.dumps(made)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
