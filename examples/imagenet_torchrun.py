"""A posterior for an ImageNet classifier, by all GPUs of a machine.

    torchrun --nproc-per-node 8 examples/imagenet_torchrun.py /data/imagenet

The folder has the images as /data/imagenet/train/CLASS/*.JPEG and /data/imagenet/val/CLASS/*.JPEG. Half of
the validation images tune the posterior, and the other half measures it. Each process reads its share of the
images, and all of them end with the same posterior, which the first one saves. If the machine goes down
during the fit, the same command goes on where it stopped.

Without a GPU the processes work on the CPU. `--model package.module:function` names what makes the network,
with its trained weights.
"""

import argparse
import os
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import bitbayes as bb

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class ImageFolder(Dataset):
    """Images in one folder for each class, the classes in the order of their names.

    Args:
        folder: with the folders of the classes.
        size: the side of the square that is cut out of the middle, after the shorter side was made 8/7 of it.
    """

    def __init__(self, folder: Path, size: int) -> None:
        classes = sorted(each.name for each in folder.iterdir() if each.is_dir())
        self.images = [
            (file, i) for i, name in enumerate(classes) for file in sorted((folder / name).iterdir())
        ]
        self.size = size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.images[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        scale = self.size * 8 / 7 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        image = image.crop((left, top, left + self.size, top + self.size))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = pixels.reshape(self.size, self.size, 3) / 255
        return ((pixels - MEAN) / DEVIATION).permute(2, 0, 1), label


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="torchvision.models:resnet50", help="package.module:function")
    parser.add_argument("--weights", help="what the function is given as its `weights`, DEFAULT say")
    parser.add_argument("--output", type=Path, default=Path("bayes.safetensors"))
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8, help="that read images, for each process")
    options = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Processes wait for each other at the end of a pass: longer than the slowest is behind the fastest.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=1))

    def loader(images: Dataset) -> DataLoader:
        # It repeats a few images so that all shares are of one size. bitbayes leaves these out.
        sampler = DistributedSampler(images, shuffle=False)
        return DataLoader(images, options.batch_size, sampler=sampler, num_workers=options.workers)

    train, held_out = (ImageFolder(options.folder / name, options.size) for name in ("train", "val"))
    validation, test = (Subset(held_out, range(half, len(held_out), 2)) for half in (0, 1))
    bayes = bb.Laplace(network(options.model, options.weights).to(device))
    bayes.fit(loader(train), checkpoint=options.checkpoint)
    bayes.tune(loader(validation))
    if dist.get_rank() == 0:
        bayes.save(options.output)
        print(bayes)
        measured = bayes.evaluate(DataLoader(test, options.batch_size, num_workers=options.workers))
        print(", ".join(f"{name} {value:.4f}" for name, value in measured.items()))
    dist.destroy_process_group()


def network(name: str, weights: str | None) -> nn.Module:
    module, function = name.split(":")
    make = getattr(import_module(module), function)
    return make() if weights is None else make(weights=weights)


if __name__ == "__main__":
    main()
