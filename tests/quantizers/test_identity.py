"""Identity: the update itself."""

from __future__ import annotations

import numpy as np

from fedpaq import Identity, Key


def test_an_identity_message_is_its_update_and_takes_its_weight():
    update = np.array([1.0, -2.0], np.float32)
    messages = Identity().quantize_batch(np.stack([update, 2 * update]), [Key(seed=0)] * 2)
    assert [one.dequantize().tolist() for one in messages] == [[1.0, -2.0], [2.0, -4.0]]
    assert Identity().name == "none" and Identity().variance_bound(10) == 0.0 and Identity() == Identity()
