"""A training whose losses are the same bits in each run: `train.py LAYERS STEPS DEVICE_GIB HOST_GIB`.

LAYERS of 4096 by 4096 words with AdamW take 0.25 GiB each; DEVICE_GIB of random words lie beside them on the device and HOST_GIB in
the host's memory, and are summed up every hundredth step.
"""

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn

WIDTH, BATCH = 4096, 256


def bits(value: torch.Tensor) -> str:
    return f"{value.detach().float().cpu().view(torch.int32).item() & 0xFFFFFFFF:08x}"


def main() -> None:
    given = [float(each) for each in sys.argv[1:]]
    layers, steps, device_gib, host_gib = given + [80, 400, 0, 0][len(given) :]
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()) for _ in range(int(layers))))
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    words = (1 << 30) // 4
    beside = [torch.randint(1 << 31, (words,), dtype=torch.int32, device=device) for _ in range(int(device_gib))]
    beside += [torch.randint(1 << 31, (words,), dtype=torch.int32) for _ in range(int(host_gib))]
    batches = torch.Generator().manual_seed(2)
    print("ready", flush=True)
    for step in range(1, int(steps) + 1):
        batch = torch.randn(BATCH, WIDTH, generator=batches).pin_memory().to(device, non_blocking=True)
        loss = (model(batch) - batch).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        print(step, bits(loss), flush=True)
        if step % 100 == 0:
            print(step, [int(each.sum(dtype=torch.int64)) for each in beside], flush=True)
    print("done", flush=True)


main()
