"""Transformations of images: rotation and blur.

Every number is a sum of products over one image, in a fixed order, so it does not depend on the other images.
"""

from math import ceil, cos, radians, sin

import torch
from torch import Tensor
from torch.nn.functional import pad


def rotate_images(images: Tensor, degrees: float) -> Tensor:
    """Rotates images `[n, channels, h, w]` counter-clockwise about their centre; bilinear, and 0 outside."""
    height, width = images.shape[-2:]
    c, s = cos(radians(degrees)), sin(radians(degrees))
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2
    row, column = s * x + c * y + (height - 1) / 2, c * x - s * y + (width - 1) / 2  # source position of each pixel
    top, left = row.floor(), column.floor()
    found, flat = torch.zeros_like(images), images.flatten(-2)
    for down in (0, 1):
        for right in (0, 1):
            r, k = top + down, left + right
            share = (1 - (row - r).abs()) * (1 - (column - k).abs())
            inside = (r >= 0) & (r < height) & (k >= 0) & (k < width)
            place = (r.clamp(0, height - 1) * width + k.clamp(0, width - 1)).long().flatten().to(images.device)
            found += flat[..., place].view_as(images) * (share * inside).to(images.device, images.dtype)
    return found


def blur_images(images: Tensor, sigma: float) -> Tensor:
    """Blurs images `[n, channels, h, w]` by a Gaussian with standard deviation `sigma` (pixels); repeats the border."""
    reach = ceil(3 * sigma)
    weights = torch.arange(-reach, reach + 1, dtype=torch.float64).div(sigma).square().mul(-0.5).exp()
    shares = (weights / weights.sum()).tolist()
    height, width = images.shape[-2:]
    wide = pad(images, (reach, reach, 0, 0), mode="replicate")
    rows = torch.zeros_like(images)
    for k, share in enumerate(shares):
        rows += share * wide[..., k : k + width]
    high, found = pad(rows, (0, 0, reach, reach), mode="replicate"), torch.zeros_like(images)
    for k, share in enumerate(shares):
        found += share * high[..., k : k + height, :]
    return found
