"""Networks: their sizes are those of the docs, and a transformer does not see what it predicts."""

from __future__ import annotations

import torch

from fedpaq.experiments.models.networks import ByteTransformer, next_byte_loss, resnet18


def count(module):
    return sum(each.numel() for each in module.parameters())


def test_sizes():
    assert count(resnet18()) == 11_172_170
    assert count(ByteTransformer()) == 4_902_656


def test_resnet_takes_images_and_gives_classes():
    assert resnet18(7, width=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_no_output_depends_on_later_bytes():
    torch.manual_seed(0)
    model = ByteTransformer(16, 2, 8).eval()
    ids = torch.randint(0, 256, (1, 8))
    other = ids.clone()
    other[0, 5] = (other[0, 5] + 1) % 256
    same = (model(ids) - model(other)).abs().amax(2)[0]
    assert same[:5].max() < 1e-6 < same[5:].min()


def test_the_loss_of_equal_logits_is_eight_bits():
    loss = next_byte_loss(torch.zeros(2, 4, 256), torch.zeros(2, 4, dtype=torch.long))
    assert abs(loss.item() / torch.log(torch.tensor(2.0)).item() - 8) < 1e-5
