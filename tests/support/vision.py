"""Tiny vision models of random weights, and images for them."""

import numpy as np
import torch
import transformers

from attnflow.models import Explainer
from attnflow.models.image import ImageAdapter

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
LABELS = {0: "cat", 1: "dog", 2: "bird"}
REGISTERS = ("[REG1]", "[REG2]", "[REG3]")
# Every model, its configuration, and the special tokens it is to have.
MODELS = {
    "ViTModel": ("ViTConfig", ("[CLS]",)),
    "ViTForImageClassification": ("ViTConfig", ("[CLS]",)),
    "DeiTModel": ("DeiTConfig", ("[CLS]", "[DIST]")),
    "DeiTForImageClassification": ("DeiTConfig", ("[CLS]", "[DIST]")),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", ("[CLS]", "[DIST]")),
    "Dinov2Model": ("Dinov2Config", ("[CLS]",)),
    "Dinov2ForImageClassification": ("Dinov2Config", ("[CLS]",)),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", ("[CLS]", *REGISTERS)),
    "Dinov2WithRegistersForImageClassification": (
        "Dinov2WithRegistersConfig",
        ("[CLS]", *REGISTERS),
    ),
    "CLIPVisionModel": ("CLIPVisionConfig", ("[CLS]",)),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", ("[CLS]",)),
}
CLASSIFIERS = [name for name in MODELS if "Classification" in name]


def make(name):
    """A model that attends to some patches more than to others."""
    config_name, _ = MODELS[name]
    options = dict(SIZES)
    if name in CLASSIFIERS:
        options["id2label"] = LABELS
    if "Registers" in config_name:
        options["num_register_tokens"] = len(REGISTERS)
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config_name)(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.4)
    return model.eval()


def processor(**options):
    """Resizes every image to the model's size."""
    return transformers.ViTImageProcessorPil(**{"size": {"height": 32, "width": 32}, **options})


def photo(height=40, width=60, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def explain(model, image, prepare=None, **options):
    return Explainer(model, prepare or processor()).explain(image, **options)


def model_class(config, task="auto"):
    """The class that a checkpoint is loaded with, None if it is of no vision model."""
    loader = ImageAdapter.loader(config, task, gguf=False)
    return None if loader is None else getattr(transformers, loader[0])
