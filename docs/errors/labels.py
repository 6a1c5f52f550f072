import torch
import torch.nn.functional as F
from lazyeng import lazy, wrap


def step(logits, labels):
    return F.cross_entropy(logits * 2, labels)


def main():
    losses = []
    with lazy():
        for label in (0, 1, 3):
            losses.append(step(wrap(torch.ones(1, 3)), wrap(torch.tensor([label]))))
    print([round(loss.item(), 3) for loss in losses])


main()
