"""Generate text with a Llama of transformers, for prompts of two lengths, and print the tokens per second.

    python generate.py

The weights are random, and the program knows nothing of profpipe.
"""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@torch.inference_mode()
def main():
    gpu = torch.cuda.is_available()
    layers, width, new = (16, 2048, 64) if gpu else (2, 64, 8)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    model = LlamaForCausalLM(config).to(device, dtype).eval()
    for request in range(12):
        length = 512 if request % 2 else 2048
        prompt = torch.randint(config.vocab_size, (1, length), device=device)
        began = time.perf_counter()
        found = model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        print(f"prompt {length}: {(found.shape[1] - length) / seconds:.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
